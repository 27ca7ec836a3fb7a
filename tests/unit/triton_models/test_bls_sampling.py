"""Sampling options have the same effect through `lookahead_bls` as in the engine, with and without drafts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from pipeline.decoding.request import SamplingParams
from pipeline.triton_models.bls import Bls
from tests.fakes import VOCAB_SIZE, make_request, plain_decode
from tests.unit.triton_models.fakes import TableTarget, letter_codec, small_config, text_tensors
from tests.unit.triton_models.test_bls_chains import ids_of, strict_bls

LENGTH = 24
# A base that no option leaves as it is; values that 32 bits hold exactly.
BASE: dict[str, Any] = {"temperature": 1.25, "seed": 7}
# As the client sends an option, and what it means.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "temperature": ({"temperature": 3.0}, {"temperature": 3.0}),
    "seed": ({"seed": 2**63 + 5}, {"seed": 2**63 + 5}),
    "top_k": ({"top_k": 2}, {"top_k": 2}),
    "top_p": ({"top_p": 0.25}, {"top_p": 0.25}),
    "min_p": ({"min_p": 0.5}, {"min_p": 0.5}),
    "repetition_penalty": ({"repetition_penalty": 4.0}, {"repetition_penalty": 4.0}),
    "presence_penalty": ({"presence_penalty": 5.0}, {"presence_penalty": 5.0}),
    "frequency_penalty": ({"frequency_penalty": 2.5}, {"frequency_penalty": 2.5}),
    "bad_words": ({"bad_words": ["b", "c", "de"]}, {"bad_words": ((1,), (2,), (3, 4))}),
    "embedding_bias": (
        {"embedding_bias_words": ["c", "g"], "embedding_bias_weights": [4.0, -8.0]},
        {"embedding_bias": np.asarray([{2: 4.0, 6: -8.0}.get(i, 0.0) for i in range(VOCAB_SIZE)], np.float32)},
    ),
    "logit_bias": (
        {"logit_bias_ids": [2, 6], "logit_bias_values": [4.0, -8.0]},
        {"embedding_bias": np.asarray([{2: 4.0, 6: -8.0}.get(i, 0.0) for i in range(VOCAB_SIZE)], np.float32)},
    ),
    "penalties of the output": (
        {"presence_penalty": 5.0, "prompt_ignore_length": 4},
        {"presence_penalty": 5.0, "prompt_ignore_length": 4},
    ),
    "greedy": ({"temperature": 0.0, "seed": 1}, {"temperature": 0.0}),
    "greedy by top_k": ({"top_k": 1, "min_p": 0.5}, {"temperature": 0.0}),
    "greedy with penalties": ({"top_k": 1, "frequency_penalty": 2.5}, {"temperature": 0.0, "frequency_penalty": 2.5}),
}


def expected(**params: Any) -> list[int]:
    """Plain decoding on the table, with no end token, so that no output is short by chance."""
    sampling = SamplingParams(**({"temperature": 1.25, "seed": 7} | params))
    return plain_decode(make_request([2, 2, 3, 3], LENGTH, sampling=sampling))


def output_ids(bls: Bls, **sent: Any) -> list[int]:
    async def ask() -> Any:
        tensors = text_tensors("ccdd", LENGTH, end_id=-1, return_statistics=True, **(BASE | sent))
        return [answer async for answer in bls.answer(tensors)][-1]

    ids: list[int] = json.loads(asyncio.run(ask()).tensors["statistics"].item())["output_ids"]
    return ids


@pytest.mark.parametrize("strategy", ["none", "trie"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_acts_as_on_the_targets_logits(option: str, strategy: str) -> None:
    sent, means = OPTIONS[option]
    bls = Bls(small_config(), letter_codec(), [TableTarget()])
    assert (expected(**means) == expected()) == (option == "nothing"), "an option without effect shows nothing"
    for _ in range(2):  # the second time with drafts from the first
        assert output_ids(bls, strategy=strategy, **sent) == expected(**means)


def test_calls_do_not_repeat_the_noise_of_an_engine_that_draws_it_anew_in_each():
    """TensorRT-LLM's noise depends on the seed alone, ours on the position too, so it gets the client's own."""
    for overrides, differ in ((("backend=tensorrt_llm", "device=cuda"), True), ((), False)):
        bls, targets = strict_bls("trie", *overrides)
        ids_of(bls, "bcd", 40, strategy="trie", temperature=0.9, seed=2**64 - 1, end_id=-1)
        seeds = [int(call["seed"].item()) for target in targets.values() for call in target.calls]
        assert seeds[0] == 2**64 - 1
        assert len(seeds) > 2
        assert len(set(seeds)) == (len(seeds) if differ else 1)

"""W, N and G: the formula, valid values, and limits of requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.engine.traits import RuntimeLimits
from pipeline.errors import RequestError
from pipeline.triton_models.routing import lookahead_for_request, not_for_lookahead

# W, N, G, max_draft_len: figures from TensorRT-LLM's own documents and two third parties.
KNOWN = [
    (1, 1, 0, 0),
    (1, 2, 1, 1),
    (3, 3, 3, 11),
    (8, 3, 3, 21),
    (4, 5, 3, 27),
    (7, 5, 7, 55),
    (1, 32, 1, 61),
    (15, 5, 15, 119),
    (15, 15, 15, 419),
]


config = LookaheadConfig.of

LEGAL = st.builds(config, st.integers(1, 20), st.integers(2, 12), st.integers(0, 20))


@pytest.mark.parametrize(("w", "n", "g", "drafts"), KNOWN)
def test_the_formula_agrees_with_published_figures(w, n, g, drafts):
    assert config(w, n, g).max_draft_len == drafts


@given(LEGAL, LEGAL, st.integers(0, 40))
def test_what_a_request_sends_is_legal_within_the_instance_and_safe_for_its_prompt(instance, asked, prompt_len):
    if asked.exceeds(instance):
        with pytest.raises(RequestError, match="no value may be larger"):
            lookahead_for_request(instance, asked, prompt_len)
        return
    sent = lookahead_for_request(instance, asked, prompt_len)
    assert config(*sent.sizes).sizes == sent.sizes  # legal
    assert sent.is_off or not sent.exceeds(asked)
    assert sent.max_ngram_size - 1 <= max(prompt_len, 0)
    if prompt_len >= asked.max_ngram_size - 1:
        assert sent == asked


@given(LEGAL, LEGAL)
def test_sizes_exceed_others_if_one_of_the_three_is_larger(one, other):
    larger = [mine > limit for mine, limit in zip(one.sizes, other.sizes, strict=True)]
    assert one.exceeds(other) is any(larger)


def test_a_request_may_switch_lookahead_off():
    def sent(asked: LookaheadConfig | None, prompt_len: int) -> tuple[int, int, int]:
        return lookahead_for_request(config(7, 7, 7), asked, prompt_len).sizes

    assert sent(config(1, 1, 0), 100) == (1, 1, 0)
    assert sent(None, 100) == (7, 7, 7)
    assert sent(None, 3) == (7, 4, 7)
    assert sent(None, 0) == (1, 1, 0)


def test_longest_prompt_depends_on_chunks():
    limits = RuntimeLimits(max_seq_len=4096, max_num_tokens=2048, max_draft_len=83, chunked_context=False)
    assert limits.longest_prompt == 2048
    assert RuntimeLimits(4096, 2048, 83, True).longest_prompt == 4095
    assert limits.usable_seq_len == 4013


def test_what_a_lookahead_engine_would_not_apply_is_named():
    def named(**settings: Any) -> list[str]:
        request = GenerationRequest("r", np.asarray([1], np.int32), 8, sampling=SamplingParams(**settings))
        return list(not_for_lookahead(request))

    assert named() == []
    assert named(temperature=0.7, top_k=1) == []
    assert named(temperature=0.7, top_p=0.9) == ["temperature", "top_p"]
    assert named(repetition_penalty=1.2, bad_words=((1,),)) == ["repetition_penalty", "bad_words"]
    assert named(embedding_bias=np.zeros(4, np.float32)) == ["embedding_bias"]


def test_min_tokens_hold_for_the_one_end_token_that_a_lookahead_engine_knows():
    def named(*end_ids: int, stops: tuple[tuple[int, ...], ...] = ()) -> list[str]:
        prompt, ends = np.asarray([1], np.int32), frozenset(end_ids)
        request = GenerationRequest("r", prompt, 8, min_new_tokens=4, end_ids=ends, stop_sequences=stops)
        return list(not_for_lookahead(request))

    assert named(1) == []
    assert named(1, stops=((2,),)) == ["min_tokens (the output ends at several tokens)"]
    assert named(1, 2) == ["min_tokens (the output ends at several tokens)"]

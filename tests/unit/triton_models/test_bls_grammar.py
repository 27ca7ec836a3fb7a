"""Grammars and log probabilities through the BLS model and the tensors of `tensorrt_llm`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.log_probs import log_softmax
from pipeline.decoding.request import SamplingParams
from pipeline.engine.backend import backend_of
from pipeline.errors import RequestError
from pipeline.triton_models.bls import Bls, TextResponse
from tests.fakes import make_request, table_logits
from tests.grammars import END, STOP
from tests.trt_configs import trt_config
from tests.unit.engine.test_scheduler_grammar import plain
from tests.unit.triton_models.fakes import TableTarget, letter_codec, small_config, text_tensors
from tests.unit.triton_models.test_bls import STRATEGIES, expected_ids, make_bls, run_in
from tests.unit.triton_models.test_bls_tokens import PROMPT, PROMPT_IDS, ids_of, token_tensors

PATTERN = "(ab|x1|21){3,9}b"


def guided(**more: object) -> dict[str, Any]:
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": PATTERN}
    return token_tensors(PROMPT_IDS, 30, end_id=END, **guide, **more)


def concatenated(answers: list[TextResponse], name: str, axis: int) -> np.ndarray:
    return np.concatenate([answer.tensors[name] for answer in answers if name in answer.tensors], axis=axis)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_grammar_holds_across_the_calls_of_a_request(strategy, stream, temperature):
    request = make_request(
        PROMPT_IDS,
        30,
        guide=Guide("regex", PATTERN),
        end_ids=frozenset({END}),
        sampling=SamplingParams(temperature=temperature, seed=4),
    )
    bls = make_bls()

    for _ in range(2):  # the second time the trie knows the output
        answers = run_in(bls, guided(strategy=strategy, stream=stream, temperature=temperature, seed=4))
        assert ids_of(answers) == plain(request)
        assert answers[-1].tensors["finish_reason"].item() == b"end_token"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_of_several_end_tokens_ends_a_guided_output(stream, seed):
    ends = frozenset({END, STOP})
    guide = Guide("regex", "[ab]{2,12}")
    sampling = SamplingParams(temperature=1.5, seed=seed)
    whole = plain(make_request(PROMPT_IDS, 30, guide=guide, end_ids=ends, sampling=sampling))
    assert whole[-1] in ends
    target = TableTarget()
    bls = Bls(small_config(), letter_codec(ends), [target])

    guiding = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": guide.text}
    asked = {"strategy": "trie", "stream": stream, "temperature": 1.5, "seed": seed, **guiding}
    answers = run_in(bls, token_tensors(PROMPT_IDS, 30, **asked))

    assert ids_of(answers)[:-1] == whole[:-1]
    assert ids_of(answers)[-1] in ends
    assert answers[-1].tensors["finish_reason"].item() == b"end_token"
    assert all(call["end_ids"].reshape(-1).tolist() == sorted(ends) for call in target.calls)


def test_a_resumed_output_goes_on_in_its_grammar():
    whole = plain(make_request(PROMPT_IDS, 30, guide=Guide("regex", PATTERN), end_ids=frozenset({END})))
    tensors = guided(num_resumed_tokens=4) | {"input_ids": np.asarray([[*PROMPT_IDS, *whole[:4]]], np.int32)}

    assert whole[:4] + ids_of(run_in(make_bls(), tensors)) == whole


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_come_with_their_tokens(strategy, stream):
    wanted = {"return_log_probs": True, "num_top_logprobs": 2, "return_prompt_log_probs": True}
    tensors = token_tensors(PROMPT_IDS, 20, strategy=strategy, stream=stream, return_generation_logits=True, **wanted)

    answers = run_in(make_bls(), tensors)

    ids = ids_of(answers)
    assert ids == expected_ids(PROMPT, 20)
    for answer in answers:
        # An end token is returned and has none.
        num_tokens = sum(token != 0 for token in answer.tensors["output_ids"].reshape(-1))
        assert answer.tensors.get("output_log_probs", np.empty((1, 1, 0))).shape == (1, 1, num_tokens)
    contexts = [PROMPT_IDS + ids[:end] for end in range(len(ids))]
    rows = [table_logits(context) for context in contexts]
    log_probs = concatenated(answers, "output_log_probs", 2)[0, 0]
    assert log_probs.tolist() == [log_softmax(row)[token] for row, token in zip(rows, ids, strict=True)]
    assert concatenated(answers, "top_logprob_ids", 1)[0].tolist() == [
        np.argsort(-row, kind="stable")[:2].tolist() for row in rows
    ]
    assert np.array_equal(concatenated(answers, "generation_logits", 2)[0, 0], np.stack(rows))
    totals = [answer.tensors["cum_log_probs"].item() for answer in answers if "cum_log_probs" in answer.tensors]
    assert totals[-1] == pytest.approx(log_probs.sum(), rel=1e-5)
    prompt_rows = [log_softmax(table_logits(PROMPT_IDS[: end + 1])) for end in range(len(PROMPT_IDS) - 1)]
    expected = [row[token] for row, token in zip(prompt_rows, PROMPT_IDS[1:], strict=True)]
    assert concatenated(answers, "prompt_log_probs", 1)[0].tolist() == expected


def test_nothing_of_the_logits_is_returned_unless_asked_for():
    (answer,) = run_in(make_bls(), token_tensors(PROMPT_IDS, 5))

    assert not {name for name in answer.tensors if "log" in name}


@pytest.mark.parametrize("speculation", ["trie", "lookahead", "none"])
@pytest.mark.parametrize("asked", ["guide", "log_probs"])
def test_a_tensorrt_llm_engine_that_cannot_apply_them_refuses_with_the_reason(speculation, asked):
    config = ("engine.strict_tensorrt_llm=true", f"tensorrt_llm.speculation={speculation}")
    more = {"guide": guided(), "log_probs": token_tensors(PROMPT_IDS, 5, return_log_probs=True)}[asked]

    with pytest.raises(RequestError, match="plain decoding only" if asked == "guide" else "torch engine only"):
        run_in(make_bls(TableTarget(), *config), more)


def plain_tensorrt_llm(target: TableTarget) -> Bls:
    """A BLS model before an engine of TensorRT-LLM without speculation that is served with guided decoding."""
    bls = make_bls(target, "engine.strict_tensorrt_llm=true", "tensorrt_llm.speculation=none")
    bls._served = [replace(served, traits=replace(served.traits, guided=True)) for served in bls._served]
    bls._models = [served.traits for served in bls._served]
    return bls


def test_a_plain_tensorrt_llm_engine_gets_the_guide_and_decodes_the_output_in_one_call():
    target = TableTarget()

    answers = run_in(plain_tensorrt_llm(target), guided(stream=True))

    request = make_request(PROMPT_IDS, 30, guide=Guide("regex", PATTERN), end_ids=frozenset({END}))
    assert ids_of(answers) == plain(request)
    (call,) = target.calls
    assert call["guided_decoding_guide"].item() == PATTERN.encode()
    assert not {"num_resumed_tokens", "draft_strategy"} & call.keys()


def test_a_guide_that_tensorrt_llm_does_not_have_is_refused():
    tensors = guided() | text_tensors("", 30, guided_decoding_guide_type="choice", guided_decoding_guide='["ab"]')

    with pytest.raises(RequestError, match="the guide type is 'choice'; TensorRT-LLM has json, json_schema"):
        run_in(plain_tensorrt_llm(TableTarget()), tensors)


def test_traits_say_whether_a_configured_backend_applies_guides():
    settings = ("guided_decoding_backend=xgrammar", "xgrammar_tokenizer_info_path=/tokens.json")
    parameters = tuple(f"tensorrt_llm.parameters.{setting}" for setting in settings)
    for more, guides in (((), False), (parameters, True)):
        resolved = trt_config("llama2-13b", "latency", ".speculation=none", *more)
        assert [traits.guided for traits in backend_of("tensorrt_llm").traits(resolved)] == [guides]

"""Any traffic on one engine: requests that share prefixes join, end, are cancelled and continued at any step, and each
output is that of the request alone on an engine without drafts and without reuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams
from pipeline.decoding.sampling import choose_token
from pipeline.decoding.tree import chain
from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.submission import GenerationResult, StepEvent, Submission
from pipeline.engine.torch.lean.engine import LeanEngine
from tests import fakes
from tests.unit.engine.test_exactness import ALL_SOURCES
from tests.unit.engine.torch.lean.models import VOCAB_SIZE, lean_engine, tiny_model

MAX_SEQ_LEN = 96
STRATEGIES = ("none", "trie", "lookahead", "hybrid")
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.9, seed=7), SamplingParams(repetition_penalty=1.3))
# Prompts share prefixes of several lengths.
STEM = np.random.default_rng(3).integers(3, VOCAB_SIZE, 60).tolist()
KINDS = [("llama", "float32"), ("mistral", "int8"), ("qwen2", "bfloat16")]


@cache
def engine_of(variant: str, kind: str) -> LeanEngine:
    """An engine with few slots, so that sequences take over those of others."""
    with TemporaryDirectory() as name:  # its weights are mapped and stay readable
        limits = EngineLimits(3, MAX_SEQ_LEN, 64, 20, VOCAB_SIZE)
        return lean_engine(tiny_model(variant), kind, Path(name), 1, limits)  # type: ignore[arg-type]


def alone(engine: LeanEngine, request: GenerationRequest) -> list[int]:
    """The output of a request, one token per pass, without drafts and reuse. The prompt may hold the first tokens."""
    tokens, num_prompt = request.prompt_ids.tolist(), len(request.prompt_ids) - request.num_resumed_tokens
    sequence = engine.open(request.prompt_ids, reuse=False)
    try:
        while len(tokens) - num_prompt < request.max_new_tokens and len(tokens) < MAX_SEQ_LEN:
            (logits,) = engine.verify([VerifyItem(sequence)])
            assert logits is not None
            tokens.append(choose_token(request, logits.row(0), np.asarray(tokens, np.int32)))
            if tokens[-1] in request.end_ids:
                break
            engine.commit(sequence, [], tokens[-1:])
    finally:
        engine.release(sequence)
    return tokens[len(request.prompt_ids) :]


@dataclass(slots=True)
class Sent:
    submission: Submission
    result: GenerationResult
    cancelled: bool = False
    done: bool = False

    def take(self, event: StepEvent) -> None:
        assert not self.done
        self.result.take(event)
        self.done = event.done


class Traffic:
    """Requests to one scheduler, by random actions."""

    def __init__(self, engine: LeanEngine) -> None:
        engine.forget_cached()
        drafter = create_drafter(ALL_SOURCES, LookaheadConfig.of(3, 3, 3), VOCAB_SIZE)
        self.scheduler = fakes.make_scheduler(engine=engine, drafter=drafter, budget=(14, 6), prefill_chunk=7)
        self.sent: list[Sent] = []

    def submit(self, submission: Submission) -> None:
        sent = Sent(submission, GenerationResult())
        self.sent.append(sent)
        self.scheduler.submit(submission, sent.take)

    def cancel(self, number: int) -> None:
        if self.sent and not (sent := self.sent[number % len(self.sent)]).done:
            sent.cancelled = True
            self.scheduler.cancel(sent.submission.request.request_id)

    def go_on(self, number: int, strategy: str) -> None:
        """Continue a request that its limit of steps has ended."""
        ended = [sent for sent in self.sent if sent.done and sent.result.finish_reason is None and not sent.cancelled]
        if not ended:
            return
        sent = ended[number % len(ended)]
        request, output = sent.submission.request, sent.result.output_ids
        resumed = replace(
            request,
            request_id=f"{request.request_id}+",
            prompt_ids=np.asarray([*request.prompt_ids, *output], np.int32),
            num_resumed_tokens=request.num_resumed_tokens + len(output),
        )
        if request.request_id + "+" not in {other.submission.request.request_id for other in self.sent}:
            self.submit(replace(sent.submission, request=resumed, strategy=strategy))

    def end(self) -> None:
        for _ in range(2000):
            if all(sent.done for sent in self.sent):
                return
            self.scheduler.step()
        raise AssertionError("some requests never end")


submissions = st.builds(
    lambda length, tail, tokens, strategy, sampling, steps, drafts: Submission(
        fakes.make_request([*STEM[:length], *tail], tokens, sampling=SAMPLINGS[sampling], end_ids=frozenset({2})),
        strategy,
        supplied=chain(drafts),
        max_steps=steps,
        to_be_continued=steps is not None,
    ),
    st.integers(1, len(STEM)),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
    st.integers(1, 40),
    st.sampled_from(STRATEGIES),
    st.integers(0, len(SAMPLINGS) - 1),
    st.sampled_from([None, None, 1, 3]),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4),
)
actions = st.one_of(
    st.builds(lambda submission: lambda traffic: traffic.submit(submission), submissions),
    st.builds(lambda count: lambda traffic: [traffic.scheduler.step() for _ in range(count)], st.integers(1, 8)),
    st.builds(lambda number: lambda traffic: traffic.cancel(number), st.integers(0, 9)),
    st.builds(
        lambda number, strategy: lambda traffic: traffic.go_on(number, strategy),
        st.integers(0, 9),
        st.sampled_from(STRATEGIES),
    ),
    st.just(lambda traffic: traffic.scheduler.engine.forget_cached()),
)


@pytest.mark.parametrize(("variant", "kind"), KINDS)
@settings(max_examples=8, deadline=None)
@given(st.lists(actions, min_size=3, max_size=30))
def test_every_output_is_that_of_the_request_alone(
    variant: str, kind: str, steps: list[Callable[[Traffic], object]]
) -> None:
    engine = engine_of(variant, kind)
    traffic = Traffic(engine)
    for step in steps:
        step(traffic)
    traffic.end()
    assert not any(slot.in_use for slot in engine._slots)
    assert not any(traffic.scheduler.drafter.failures.values())
    for sent in traffic.sent:
        result, expected = sent.result, alone(engine, sent.submission.request)
        assert result.error is None
        if sent.cancelled or sent.submission.max_steps is not None:
            assert result.output_ids == expected[: len(result.output_ids)]
        else:
            assert result.output_ids == expected
            assert result.finish_reason in (FinishReason.END_TOKEN, FinishReason.LENGTH)

"""The target of the BLS loop without a server: our scheduler over a table, behind the tensors of `tensorrt_llm`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

import numpy as np

from pipeline.backends.tensorrt_llm.strict import StrictEngine, require_outputs, strict_call
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig, SuppliedDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import chain
from pipeline.engine.submission import StepEvent
from pipeline.triton_models.engine_calls import engine_call, rows_of
from pipeline.triton_models.engine_responses import EngineCall
from pipeline.triton_models.tensors import Array, Tensors
from pipeline.triton_models.text_codec import TextCodec
from tests.fakes import VOCAB_SIZE, TableEngine, make_scheduler
from tests.grammars import compiler

END_ID = 0


class LetterTokenizer:
    """Token i is the i-th letter; token 0 ends."""

    eos_token_id = END_ID
    pad_token_id = END_ID
    chat_template = None
    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(chr(ord("a") + token) for token in ids if token != END_ID or not skip_special_tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return chr(ord("a") + token)


def letter_codec(end_ids: frozenset[int] = frozenset({END_ID})) -> TextCodec:
    return TextCodec(LetterTokenizer(), end_ids, VOCAB_SIZE)


@cache
def small_config(*overrides: str) -> ResolvedConfig:
    # What the shipped profile says of these must not matter to tests.
    sizes = ("engine.max_seq_len=256", "engine.max_batch_size=4", "drafting.max_draft_tokens=16")
    # What is sent must not depend on how long the calls of a test take.
    fixed = ("backend=torch", "device=cpu", "drafting.planner=fixed", *sizes)
    resolved = resolve_config("tiny-random-llama", "latency", (*fixed, *overrides), backend_rules=False)
    # The memory of the profile's trie takes longer to clear than most tests take.
    small = {"max_bytes": 1 << 20}
    sources = (
        each.model_copy(update=small) if each.kind == "trie" else each for each in resolved.profile.drafting.sources
    )
    return resolved.with_settings("drafting", sources=tuple(sources))


@dataclass
class TableTarget:
    """calls: what it was asked. strict: the engine of TensorRT-LLM that it plays; None: the torch engine. cut_drafts:
    by a chance of one half it verifies a part of the drafts only, as a full pass makes TensorRT-LLM do; silent: and
    counts all of them."""

    strict: StrictEngine | None = None
    cut_drafts: bool = False
    silent: bool = False
    calls: list[dict[str, Array]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    engine: TableEngine = field(default_factory=TableEngine)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def connect(self) -> None:
        pass

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        assert "streaming" not in tensors
        found: dict[str, Array] = {}
        async with aclosing(self._answers(tensors, outputs, request_id)) as answers:
            async for answer in answers:
                found |= answer
        return found

    async def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        assert tensors["streaming"].item()
        async with aclosing(self._answers(tensors, outputs, request_id)) as answers:
            async for answer in answers:
                yield answer

    async def _answers(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[dict[str, Array], None]:
        self.calls.append(dict(tensors))
        drafter = Drafter([SuppliedSource(SuppliedDraftConfig())], VOCAB_SIZE)
        scheduler = make_scheduler(
            engine=self.engine, drafter=drafter, budget=(16, 12), prefill_chunk=64, compiler=compiler()
        )
        call = self._call(rows_of(tensors)[0], outputs, request_id)
        events: list[StepEvent] = []
        scheduler.submit(call.submission, events.append)
        finished = False
        try:
            while not finished:
                await asyncio.sleep(0)  # as a real call lets other requests go on
                scheduler.step()
                while events:
                    event = events.pop(0)
                    if event.error is not None:
                        raise event.error
                    finished = event.done
                    answer = call.response(event)
                    if answer is not None:
                        if self.silent and "draft_input_ids" in tensors:
                            answer["total_draft_tokens"][:] = tensors["draft_input_ids"].size
                        yield {name: value for name, value in answer.items() if name in outputs}
        finally:
            if not finished:
                self.cancelled.append(request_id)
                scheduler.cancel(request_id)
                scheduler.step()

    def _call(self, tensors: Tensors, outputs: Sequence[str], request_id: str) -> EngineCall:
        if self.strict is None:
            return engine_call(tensors, request_id)
        require_outputs(outputs)
        call = strict_call(tensors, request_id, self.strict)
        num_drafts = len(call.submission.supplied)
        if not self.cut_drafts or not num_drafts or self.random.random() < 0.5:
            return call
        kept = int(self.random.integers(0, num_drafts))
        tree = chain(call.submission.supplied.token_ids[:kept].tolist())
        submission = replace(
            call.submission,
            supplied=tree,
            strategy="trie" if kept else "none",
            max_steps=1 if kept else None,  # without drafts it decodes on
        )
        return replace(call, submission=submission)


def text_tensors(text: str, max_tokens: int, **more: object) -> dict[str, Array]:
    tensors: dict[str, Array] = {
        "text_input": np.asarray([[text.encode()]], np.object_),
        "max_tokens": np.asarray([[max_tokens]], np.int32),
    }
    for name, value in more.items():
        row = value if isinstance(value, list) else [value]
        if isinstance(row[0], str):
            tensors[name] = np.asarray([[word.encode() for word in row]], np.object_)
        else:
            tensors[name] = np.asarray([row])
    return tensors

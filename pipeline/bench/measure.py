"""The measuring loop: all contenders run each prompt one after the other, in rotating order, in one process.

The speed of a shared machine varies, so figures are only compared within the round of one prompt:

    repeat 0:  prompt 0: none trie hybrid | prompt 1: trie hybrid none | prompt 2: hybrid none trie | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipeline.bench.contenders.contender import Contender
from pipeline.bench.data.workload import Prompt, Turns, WorkloadRow, output_text, prompt_ids_of
from pipeline.bench.report.results import MeasuredRequest, RequestRecord, Warmth
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.tree import IntArray
from pipeline.triton_models.text_codec import TextCodec

WARM_UP_ROUNDS = 2
WARM_UP_TOKENS = 32

_request_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of all requests. warmth: with "cold" draft sources are emptied before each row, with "warm" before each
    repeat. raw: use no chat template. end_ids: tokens that end an output. guide: format that outputs must match, if
    any; `measure` takes that of the row."""

    max_new_tokens: int = 128
    end_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    warmth: Warmth = "cold"
    repeats: int = 1
    turns: Turns = "first"
    raw: bool = False
    guide: Guide | None = None


def make_request(options: MeasureOptions, prompt_ids: IntArray, namespace: str = "") -> GenerationRequest:
    """A request with these options and a unique id."""
    return GenerationRequest(
        request_id=f"bench-{next(_request_numbers)}",
        prompt_ids=prompt_ids,
        max_new_tokens=options.max_new_tokens,
        end_ids=options.end_ids,
        sampling=options.sampling,
        namespace=namespace,
        guide=options.guide,
    )


def measure(
    contenders: Sequence[Contender],
    rows: Sequence[WorkloadRow],
    codec: TextCodec,
    options: MeasureOptions,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
) -> list[RequestRecord]:
    """Return records by repeat, then row, then contender. The first contender is the baseline: outputs are compared
    with its outputs, and with several turns its answers continue all conversations."""
    warm_up(contenders, rows[0], codec, options)
    records: list[RequestRecord] = []
    for repeat in range(options.repeats):
        for contender in contenders:
            contender.forget()
        for index, row in enumerate(rows):
            if options.warmth == "cold":
                for contender in contenders:
                    contender.forget()
            order = rotated(len(contenders), index + repeat)
            for record in _measure_row(contenders, order, row, repeat, codec, options):
                records.append(record)
                on_record(record)
    return records


def rotated(count: int, shift: int) -> list[int]:
    """0 .. count - 1, rotated by `shift`, so that no contender always runs first."""
    return [(position + shift) % count for position in range(count)]


def warm_up(contenders: Sequence[Contender], row: WorkloadRow, codec: TextCodec, options: MeasureOptions) -> None:
    """Run a short request several times, so that compilation, page faults and tuning are not measured."""
    short = replace(options, max_new_tokens=min(options.max_new_tokens, WARM_UP_TOKENS), guide=row.guide)
    prompt = row.first_prompt(options.raw)
    prompt_ids = prompt_ids_of(codec, prompt)
    for _ in range(WARM_UP_ROUNDS):
        for contender in contenders:
            contender.generate(make_request(short, prompt_ids), prompt)


def _measure_row(
    contenders: Sequence[Contender],
    order: Sequence[int],
    row: WorkloadRow,
    repeat: int,
    codec: TextCodec,
    options: MeasureOptions,
) -> list[RequestRecord]:
    options = replace(options, guide=row.guide)
    messages: list[str] = []
    records: list[RequestRecord] = []
    for number, turn in enumerate(row.asked(options.turns)):
        messages.append(turn)
        prompt = Prompt(tuple(messages), options.raw, row.system)
        prompt_ids = prompt_ids_of(codec, prompt)
        generations: dict[int, MeasuredRequest] = {}
        for index in order:
            request = make_request(options, prompt_ids)
            generations[index] = contenders[index].generate(request, prompt)
        baseline_ids = generations[0].output_ids
        records += [
            RequestRecord(
                id=f"{row.row_id}#{number + 1}" if number else row.row_id,
                task=row.task,
                strategy=contender.name,
                repeat=repeat,
                prompt_ids=prompt_ids.tolist(),
                identical=generations[index].output_ids == baseline_ids,
                **dict(generations[index]),
            )
            for index, contender in enumerate(contenders)
        ]
        messages.append(output_text(codec, baseline_ids))
    return records

"""The measuring loop: order of contenders, reset of draft sources, and comparison of outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pipeline.bench.concurrency import measure_concurrency
from pipeline.bench.data.workload import NamedPrompt, Prompt, WorkloadRow, prompt_ids_of
from pipeline.bench.measure import WARM_UP_ROUNDS, MeasureOptions, measure
from pipeline.bench.report.results import MeasuredRequest
from pipeline.bench.report.summary import summarize
from pipeline.decoding.request import GenerationRequest
from pipeline.errors import RequestError
from tests.fakes import TableEngine, make_request, plain_decode
from tests.unit.bench.bench_fakes import LyingEngine, contender_over
from tests.unit.bench.data.test_workload import FakeTokenizer, fake_codec


class DigitTokenizer(FakeTokenizer):
    """Tokens within the fake engine's vocabulary."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [2 + ord(letter) % 20 for letter in text]


@dataclass
class Recorder:
    name: str
    log: list[str]
    output: list[int] = field(default_factory=lambda: [65, 66])

    def forget(self) -> None:
        self.log.append(f"{self.name} forgets")

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        text = fake_codec().decode(request.prompt_ids.tolist())
        self.log.append(f"{self.name}: {text}")
        return MeasuredRequest(
            output_ids=self.output,
            steps=2,
            draft_tokens=0,
            accepted_tokens=0,
            acceptance_lengths=[1, 1],
            seconds=1.0,
            ttft_s=0.5,
            draft_seconds=0.0,
            finish_reason="length",
        )


ROWS = [WorkloadRow("a", "t", ("1", "2")), WorkloadRow("b", "u", ("3",))]


def played(log: list[str], warm_up_len: int) -> list[str]:
    return [entry for entry in log[warm_up_len:] if "forgets" not in entry]


def test_contenders_alternate_per_prompt_in_rotating_order_after_a_warm_up() -> None:
    log: list[str] = []
    measure([Recorder("x", log), Recorder("y", log)], ROWS, fake_codec(), MeasureOptions(repeats=2, raw=True))
    warm_up = 2 * WARM_UP_ROUNDS
    assert log[:warm_up] == ["x: 1", "y: 1"] * WARM_UP_ROUNDS
    assert played(log, warm_up) == ["x: 1", "y: 1", "y: 3", "x: 3", "y: 1", "x: 1", "x: 3", "y: 3"]


@pytest.mark.parametrize(("warmth", "times"), [("cold", 2 + 4), ("warm", 2)])
def test_cold_forgets_before_each_row_and_warm_before_each_repeat(warmth: str, times: int) -> None:
    log: list[str] = []
    measure([Recorder("x", log)], ROWS, fake_codec(), MeasureOptions(repeats=2, raw=True, warmth=warmth))  # type: ignore[arg-type]
    assert log.count("x forgets") == times


def test_all_turns_go_on_from_the_baselines_answer() -> None:
    log: list[str] = []
    contenders = [Recorder("x", log, [65, 66, 2]), Recorder("y", log, [67, 68])]  # 2 is the end token
    records = measure(contenders, ROWS[:1], fake_codec(), MeasureOptions(turns="all"))
    assert [record.id for record in records] == ["a", "a", "a#2", "a#2"]
    assert log[-1] == "y: S<u>1<a>AB<u>2<a>"
    assert [record.identical for record in records] == [True, False, True, False]


def test_records_of_a_real_scheduler_hold_the_reference_output_and_add_up() -> None:
    engine = TableEngine()
    contenders = [contender_over(engine, "none"), contender_over(engine, "trie")]
    options = MeasureOptions(max_new_tokens=20, raw=True)
    records = measure(contenders, ROWS, fake_codec(DigitTokenizer()), options)
    prompts = {row.row_id: prompt_ids_of(fake_codec(DigitTokenizer()), Prompt(row.turns[:1], raw=True)) for row in ROWS}
    expected = {row_id: plain_decode(make_request(prompt.tolist())) for row_id, prompt in prompts.items()}
    for record in records:
        assert record.output_ids == expected[record.id]
        assert record.identical
        assert record.steps == len(record.acceptance_lengths)
        assert sum(record.acceptance_lengths) == len(record.output_ids)
    by_strategy = {row.strategy: row for row in summarize(records) if row.task == "overall"}
    assert by_strategy["none"].acceptance_length == 1.0
    assert by_strategy["trie"].acceptance_length > 1.3
    assert by_strategy["none"].draft_tokens_per_step == 0.0


def test_a_changed_token_is_counted() -> None:
    engine = LyingEngine(error=100.0)
    contenders = [contender_over(engine, "none"), contender_over(engine, "trie")]
    records = measure(contenders, ROWS, fake_codec(DigitTokenizer()), MeasureOptions(max_new_tokens=20, raw=True))
    row = next(row for row in summarize(records) if (row.task, row.strategy) == ("overall", "trie"))
    assert row.num_identical < row.num_requests


def named(prompt_id: str, tokens: tuple[int, ...]) -> NamedPrompt:
    return NamedPrompt(prompt_id, make_request(tokens).prompt_ids, Prompt(("text",)))


def test_concurrency_serves_all_requests_with_outputs_as_alone() -> None:
    engine = TableEngine()
    contenders = [contender_over(engine, "none"), contender_over(engine, "trie")]
    prompts = [named(str(i), (i + 1, i + 2)) for i in range(7)]
    rows = measure_concurrency(contenders, prompts, [1, 4], MeasureOptions(max_new_tokens=12, repeats=2))
    assert [(row.concurrency, row.strategy) for row in rows] == [(1, "none"), (1, "trie"), (4, "none"), (4, "trie")]
    assert all(row.num_identical == row.num_requests == 14 for row in rows)
    assert rows[0].speedup == rows[2].speedup == 1.0
    assert rows[0].acceptance_length == 1.0
    assert not engine.held


def test_a_bad_request_in_a_concurrent_run_is_raised_after_the_others_are_served() -> None:
    engine = TableEngine()
    prompts = [named("good", (1, 2)), named("bad", (1,) * 300)]
    with pytest.raises(RequestError, match="tokens"):
        measure_concurrency([contender_over(engine, "none")], prompts, [2], MeasureOptions(max_new_tokens=4))

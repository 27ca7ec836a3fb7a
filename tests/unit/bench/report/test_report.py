"""The report has all measurements, in Markdown and in one self-contained HTML file."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest

from pipeline.bench.report.page import html_of
from pipeline.bench.report.plots import plots_of, speed_picture
from pipeline.bench.report.report import (
    cost_table,
    headline,
    markdown_of,
    reliability_table,
    source_table,
    summary_table,
)
from pipeline.bench.report.results import OVERALL, BenchResults, ConcurrencyRow, RequestRecord
from pipeline.bench.report.summary import summarize
from pipeline.cli.bench import show_results
from pipeline.decoding.planning.cost import CostPoint
from pipeline.engine.machine_load import MachineLoad
from pipeline.errors import UserError
from tests.unit.bench.report.test_summary import record


def results(identical: bool = True, **fields: object) -> BenchResults:
    records = [
        record(strategy, seconds, id=f"{task}{number}", task=task, steps=steps, draft_tokens=drafts,
               acceptance_lengths=[10 // steps] * steps, identical=identical or strategy == "none")
        for task in ("chat", "code <&>")
        for number in range(3)
        for strategy, seconds, steps, drafts in (("none", 2.0, 10, 0), ("trie", 1.0, 5, 40))
    ]  # fmt: skip
    manifest = {"config": {"model": "m|1", "profile": "p"}, "env": {"cpu": "a <b>"}, "command": ["lookahead", "bench"]}
    return BenchResults(manifest=manifest, requests=records, summary=summarize(records), **fields)  # type: ignore[arg-type]


def full_results() -> BenchResults:
    rows = [
        ConcurrencyRow(
            concurrency=level, strategy=name, tokens_per_s=10.0 * level, speedup=1.0, acceptance_length=1.0,
            ttft_p50_ms=1.0, ttft_p95_ms=2.0, num_requests=2, num_identical=2,
        )
        for level in (1, 4)
        for name in ("none", "trie")
    ]  # fmt: skip
    curve = [CostPoint(n, 1, 8, 0.001 * n) for n in (1, 2, 4)]
    return results(concurrency=rows, cost_curve=curve)


def headline_of(records: list[RequestRecord], **config: object) -> str:
    return headline(BenchResults(manifest={"config": config}, requests=records, summary=summarize(records)))


@cache
def full_page() -> str:
    return html_of(full_results())


def test_the_sources_that_drafted_what_was_accepted_have_their_shares() -> None:
    records = [
        record("none", 2.0, id="1"),
        record("hybrid", 1.0, id="1", accepted_by_source={"trie": 2, "window": 1}),
        record("hybrid", 1.0, id="2", accepted_by_source={"trie": 1}),
    ]
    table = source_table(BenchResults(manifest={}, requests=records, summary=[]))
    assert table == [{"strategy": "hybrid", "trie": "75.0%", "window": "25.0%"}]
    assert "Accepted drafts" not in markdown_of(results())


def test_promises_are_set_against_what_was_accepted() -> None:
    records = [
        record("none", 2.0, id="1"),
        record("trie", 1.0, id="1", reliability=[("trie", 0.2, 0.3, 8, 2.0, 1), ("trie", 0.9, 1.0, 2, 1.9, 2)]),
        record("trie", 1.0, id="2", reliability=[("trie", 0.2, 0.3, 8, 2.0, 2)]),
    ]
    shown = BenchResults(manifest={}, requests=records, summary=[])
    assert BenchResults.model_validate_json(shown.model_dump_json()) == shown
    assert [tuple(row.values()) for row in reliability_table(shown)] == [
        ("trie", "trie", "0.2 - 0.3", "16", "4.0", "3", "0.75"),
        ("trie", "trie", "0.9 - 1", "2", "1.9", "2", "1.05"),
    ]
    assert "Promised and accepted" in markdown_of(shown)
    assert "Promised and accepted" not in markdown_of(results())


def test_the_headline_names_the_fastest_strategy_its_interval_and_identity() -> None:
    text = headline(results())
    assert "`trie` is fastest: 2.00 times `none` (2.00 to 2.00)" in text
    assert "2.00 tokens per step over 6 prompts" in text
    assert "6 of 6 outputs are token for token those of `none`." in text


def test_plain_decoding_alone_has_nothing_to_compare() -> None:
    records = [record("none", 1.0, id=str(number)) for number in range(3)]
    assert headline_of(records) == ""


def test_a_manifest_that_was_edited_does_not_prevent_the_report() -> None:
    edited = results().model_copy(update={"manifest": {"config": "by hand"}})
    assert markdown_of(edited).startswith("# Lookahead bench: unknown model, profile unknown profile\n")


def test_a_single_measurement_claims_no_interval() -> None:
    records = [record("none", 2.0), record("trie", 1.0)]
    text = headline_of(records)
    assert "measured once and so without an interval: 2.00 times `none`, with" in text
    assert "includes 1" not in text


def test_two_prompts_are_too_few_for_a_verdict() -> None:
    records = [record(name, seconds, id=str(number)) for number, scatter in enumerate((0.6, 0.9))
               for name, seconds in (("none", 1.0), ("trie", scatter))]  # fmt: skip
    text = headline_of(records)
    assert "fastest" not in text
    assert "measured with too few requests to be sure: 1.33 times `none` (1.11 to 1.67)" in text


def test_a_strategy_is_not_fastest_if_another_lies_in_its_interval() -> None:
    times = ((0.5, 0.52), (0.5, 0.48), (0.6, 0.62), (0.4, 0.4), (0.5, 0.5))
    records = [record(name, seconds, id=str(number)) for number, (trie, hybrid) in enumerate(times)
               for name, seconds in (("none", 1.0), ("trie", trie), ("hybrid", hybrid), ("slow", 0.9))]  # fmt: skip
    text = headline_of(records)
    assert text.startswith("`trie` has the highest speed, and `hybrid` lies in its interval: 2.00 times `none`")


def test_the_headline_praises_ours_and_sets_the_baselines_beside_it() -> None:
    records = [record(name, seconds, id=str(number)) for number in range(5)
               for name, seconds in (("none", 2.0), ("trie", 1.0), ("hf", 0.5), ("hf-prompt-lookup", 4.0))]  # fmt: skip
    text = headline_of(records, baselines=["hf", "hf-prompt-lookup"])
    assert text.startswith("`trie` is the fastest of our strategies: 2.00 times `none`")
    assert "By comparison, `hf` runs at 4.00 and `hf-prompt-lookup` runs at 0.50 times `none`." in text


def test_a_baseline_whose_outputs_differ_is_no_fault_of_ours() -> None:
    records = [record(name, 1.0, id=str(number), identical=name != "hf")
               for number in range(3) for name in ("none", "trie", "hf")]  # fmt: skip
    text = headline_of(records, baselines=["hf"])
    assert "3 of 3 outputs of `hf` differ." in text
    assert "3 of 3 outputs are token for token those of `none`." in text


def test_a_strategy_whose_interval_includes_1_is_not_called_fastest() -> None:
    records = [record(name, seconds, id=str(number)) for number, scatter in enumerate((0.8, 1.0, 1.3, 0.8, 1.2))
               for name, seconds in (("none", 1.0), ("trie", scatter))]  # fmt: skip
    text = headline_of(records)
    assert "fastest" not in text
    assert "its interval includes 1" in text


def test_a_busy_machine_is_noted() -> None:
    busy, idle = results(load=MachineLoad(1.9, 2)), results(load=MachineLoad(0.1, 2))
    assert "**The machine was busy** (other programs used 1.9 of 2 cores)" in markdown_of(busy)
    assert "<strong>The machine was busy</strong>" in html_of(busy)
    assert "busy" not in markdown_of(idle)
    assert "| load | other programs used 0.1 of 2 cores |" in markdown_of(idle)


def test_a_terminal_gets_the_headline_without_marks(capsys: pytest.CaptureFixture[str]) -> None:
    show_results(results(load=MachineLoad(1.9, 2)))
    printed = " ".join(capsys.readouterr().out.split())
    assert "The machine was busy (other programs used 1.9 of 2 cores)" in printed
    assert not set("*`") & set(printed)


def test_a_measurement_through_a_server_does_not_claim_empty_draft_sources() -> None:
    remote = results()
    remote.manifest["config"]["url"] = "127.0.0.1:8001"
    assert "Draft sources were emptied before every prompt" in markdown_of(results())
    assert "KV cache could not be emptied" in markdown_of(remote)
    assert "sources were emptied" not in markdown_of(remote)


def test_the_picture_of_speeds_has_a_light_and_a_dark_form() -> None:
    light, dark = speed_picture(results(), "light"), speed_picture(results(), "dark")
    assert light.startswith("<svg ")
    assert "#1f2933" in light
    assert "#1f2933" not in dark
    with pytest.raises(UserError, match="no speedups"):
        speed_picture(BenchResults(manifest={}, requests=[], summary=[]), "light")


def test_the_headline_says_loudly_when_outputs_differ() -> None:
    assert "**6 of 6 outputs differ" in headline(results(identical=False))


def test_tables_hold_each_task_and_overall() -> None:
    table = summary_table(results(), ["chat", OVERALL])
    assert {row["task"] for row in table} == {"chat", OVERALL}
    trie = next(row for row in table if (row["task"], row["strategy"]) == (OVERALL, "trie"))
    assert trie["acceptance length"] == "2.000"
    assert trie["vs none"] == "2.000"
    assert trie["drafts/step"] == "8.0"
    assert trie["identical"] == "6/6"


def test_markdown_tables_are_well_formed_even_with_bars_in_names() -> None:
    lines = [line for line in markdown_of(full_results()).split("\n") if line.startswith("|")]
    assert lines
    widths = set()
    for block in re.split(r"\n\n", "\n".join(markdown_of(full_results()).split("\n"))):
        rows = [line for line in block.split("\n") if line.startswith("|")]
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
        assert len(counts) <= 1, block
        widths |= counts
    assert widths
    assert "m\\|1" in markdown_of(full_results())


class Checker(HTMLParser):
    """Collects tags and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#"):
                self.fetched.append(value)


def test_the_html_holds_all_plots_and_fetches_nothing() -> None:
    page = full_page()
    checker = Checker()
    checker.feed(page)
    assert checker.tags.count("svg") == 4
    assert not checker.fetched
    assert not {"script", "link", "iframe", "img"} & set(checker.tags)
    assert "@import" not in page
    assert "<!DOCTYPE svg" not in page
    assert page.count("<?xml") == 0


def test_names_are_escaped_in_html() -> None:
    page = full_page()
    assert "code &lt;&amp;&gt;" in page
    assert "code <&>" not in page
    assert "a &lt;b&gt;" in page


def test_plots_exist_for_what_was_measured_only() -> None:
    assert [*plots_of(results())] == ["Speedup against none, by task", "Tokens per step"]
    only_curve = full_results().model_copy(update={"requests": [], "summary": [], "concurrency": []})
    page = html_of(only_curve)
    assert page.count("<svg ") == 1
    assert "Time of a pass" in page


def test_the_same_results_give_the_same_file() -> None:
    assert html_of(full_results()) == full_page()


def test_the_cost_table_has_a_column_per_size() -> None:
    assert cost_table(full_results()) == [{"sequences": "1", "context": "8", "1": "1.0", "2": "2.0", "4": "4.0"}]

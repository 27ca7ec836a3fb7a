"""The content of a report on bench results, and its Markdown form; `page` has the HTML form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.bench.report.results import OVERALL, BenchResults, ConcurrencyRow, SummaryRow
from pipeline.markdown import markdown_table

# With fewer requests, all may be faster by chance: one time in 32 or more.
FEW_REQUESTS = 5


# Rows of texts by column heading; all rows have the same headings.
Table = list[dict[str, str]]


class Section(NamedTuple):
    """A section of the report. table: may be empty. is_measured: whether it holds measurements, not the environment."""

    title: str
    text: str
    table: Table
    is_measured: bool = True


def sections_of(results: BenchResults) -> list[Section]:
    """The sections of the report, the same for every format."""
    sections = []
    tasks = [task for task in dict.fromkeys(row.task for row in results.summary) if task != OVERALL]
    if results.summary:
        sections.append(Section("Result", headline(results), summary_table(results, [OVERALL])))
    if len(tasks) > 1:
        sections.append(Section("By task", "", summary_table(results, tasks)))
    sources = source_table(results)
    if sources and len(sources[0]) > 2:  # more than one source
        text = "Share of the accepted draft tokens by the source with the highest estimate."
        sections.append(Section("Accepted drafts by source", text, sources))
    reliability = reliability_table(results)
    if reliability:
        text = (
            "Verified draft tokens by their estimated probability of acceptance: expected number (promised) and actual "
            "number (accepted)."
        )
        sections.append(Section("Promised and accepted", text, reliability))
    if results.concurrency:
        text = (
            "A fixed number of requests in flight over the whole workload. Ratios of medians over repeats, without an "
            "interval."
        )
        sections.append(Section("Concurrency", text, concurrency_table(results)))
    if results.cost_curve:
        sections.append(Section("Time of a pass", "Least milliseconds by tokens in the pass.", cost_table(results)))
    if results.summary:
        sections.append(Section("How to read this", definitions(results), []))
    load = {} if results.load is None else {"load": results.load.to_text()}
    sections.append(Section("Environment", "", _manifest_table(results.manifest | load), is_measured=False))
    return sections


def headline(results: BenchResults) -> str:
    """One paragraph: speedup of our best strategy, speed of other libraries, and identity of the outputs."""
    rows = [row for row in results.summary if row.task == OVERALL and row.strategy != results.baseline]
    others = [row for row in rows if row.strategy in results.config.get("baselines", ())]
    ours = [row for row in rows if row not in others]
    sentences = []
    best = max(ours, key=lambda row: row.speedup or 0.0, default=None)
    if best is not None and best.speedup is not None:
        interval = "" if best.speedup_low is None else f" ({interval_of(best)})"
        sentences.append(
            f"`{best.strategy}` {_verdict(best, ours, others)}: {best.speedup:.2f} times `{results.baseline}`"
            f"{interval}, with {best.acceptance_length:.2f} tokens per step over {best.num_prompts} "
            f"prompt{'s' if best.num_prompts > 1 else ''}, draft sources {results.warmth}."
        )
    compared = [f"`{row.strategy}` runs at {row.speedup:.2f}" for row in others if row.speedup is not None]
    if compared:
        sentences.append(f"By comparison, {' and '.join(compared)} times `{results.baseline}`.")
    # Other libraries sum in another order or precision, so their differences are not errors.
    sentences += [
        f"{row.num_requests - row.num_identical} of {row.num_requests} outputs of `{row.strategy}` differ."
        for row in others
        if row.num_identical < row.num_requests
    ]
    return " ".join([*sentences, *_identity([*ours, *results.concurrency], results), *busy_note(results)])


def _verdict(best: SummaryRow, ours: Sequence[SummaryRow], others: Sequence[SummaryRow]) -> str:
    """Return the claim about our best strategy that the intervals support."""
    if best.speedup_low is None or best.speedup_high is None:
        return "is the best strategy with drafts, measured once and so without an interval"
    if best.num_requests < FEW_REQUESTS:
        return "is the best strategy with drafts, measured with too few requests to be sure"
    if best.speedup_high < 1:
        return "is the best strategy with drafts, but slower than none"
    if best.speedup_low <= 1:
        return "is the best strategy with drafts, but its interval includes 1"
    close = [f"`{row.strategy}`" for row in ours if row is not best and (row.speedup or 0.0) >= best.speedup_low]
    if close:
        lie = "lies" if len(close) == 1 else "lie"
        return f"has the highest speed, and {' and '.join(close)} {lie} in its interval"
    return "is the fastest of our strategies" if others else "is fastest"


def _identity(rows: Sequence[SummaryRow | ConcurrencyRow], results: BenchResults) -> list[str]:
    """Sentences about how many outputs equal the baseline's. rows: those of the other contenders."""
    total, identical = sum(row.num_requests for row in rows), sum(row.num_identical for row in rows)
    if not total:
        return []
    if identical == total:
        return [f"{total} of {total} outputs are token for token those of `{results.baseline}`."]
    sentences = [f"**{total - identical} of {total} outputs differ from those of `{results.baseline}`.**"]
    if results.config.get("dtype") in ("float16", "bfloat16"):
        sentences.append("`lookahead verify` shows whether rounding in 16 bit explains that.")
    return sentences


def busy_note(results: BenchResults) -> list[str]:
    """One sentence if other programs disturbed the run, else nothing."""
    if results.load is None or not results.load.busy:
        return []
    return [f"**The machine was busy** ({results.load.to_text()}), so speeds scatter."]


def summary_table(results: BenchResults, tasks: Sequence[str]) -> Table:
    """One row per task of `tasks` and strategy."""
    return [
        {
            "task": row.task,
            "strategy": row.strategy,
            "prompts": str(row.num_prompts),
            "acceptance length": f"{row.acceptance_length:.3f}",
            "tokens/s": f"{row.tokens_per_s:.2f}",
            f"vs {results.baseline}": "-" if row.speedup is None else f"{row.speedup:.3f}",
            "95% interval": interval_of(row),
            "drafts/step": f"{row.draft_tokens_per_step:.1f}",
            "accepted": f"{100 * row.acceptance_rate:.1f}%" if row.draft_tokens_per_step else "-",
            "TTFT ms": f"{row.ttft_ms:.1f}",
            "retrieval ms/step": f"{row.draft_ms_per_step:.3f} ({100 * row.draft_share:.1f}%)",
            "identical": f"{row.num_identical}/{row.num_requests}",
        }
        for row in results.summary
        if row.task in tasks
    ]


def source_table(results: BenchResults) -> Table:
    """One row per strategy with accepted drafts, one column per draft source."""
    accepted: dict[str, Counter[str]] = {}
    for record in results.requests:
        accepted.setdefault(record.strategy, Counter()).update(record.accepted_by_source)
    names = sorted({name for counts in accepted.values() for name in counts})
    return [
        {"strategy": strategy, **{name: f"{100 * counts[name] / counts.total():.1f}%" for name in names}}
        for strategy, counts in accepted.items()
        if counts.total()
    ]


def reliability_table(results: BenchResults) -> Table:
    """One row per strategy, source and bucket of estimates."""
    sums: dict[tuple[str, str, float, float], tuple[int, float, int]] = {}
    for record in results.requests:
        for source, low, high, *counts in record.reliability:
            key = (record.strategy, source, low, high)
            nodes, promised, accepted = (old + new for old, new in zip(sums.get(key, (0, 0.0, 0)), counts, strict=True))
            sums[key] = (int(nodes), promised, int(accepted))
    return [
        {
            "strategy": strategy,
            "source": source,
            "estimate": f"{low:g} - {high:g}",
            "tokens": str(nodes),
            "promised": f"{promised:.1f}",
            "accepted": str(accepted),
            "accepted / promised": f"{accepted / promised:.2f}" if promised else "-",
        }
        for (strategy, source, low, high), (nodes, promised, accepted) in sorted(sums.items())
    ]


def concurrency_table(results: BenchResults) -> Table:
    """One row per strategy and number of requests in flight."""
    return [
        {
            "in flight": str(row.concurrency),
            "strategy": row.strategy,
            "tokens/s": f"{row.tokens_per_s:.2f}",
            f"vs {results.baseline}": "-" if row.speedup is None else f"{row.speedup:.3f}",
            "acceptance length": f"{row.acceptance_length:.3f}",
            "TTFT p50 ms": f"{row.ttft_p50_ms:.1f}",
            "TTFT p95 ms": f"{row.ttft_p95_ms:.1f}",
            "identical": f"{row.num_identical}/{row.num_requests}",
        }
        for row in results.concurrency
    ]


def cost_table(results: BenchResults) -> Table:
    """One row per batch size and context length, one column per number of tokens."""
    points = results.cost_curve
    sizes = sorted({point.num_tokens for point in points})
    times = {(point.batch_size, point.context_len, point.num_tokens): f"{1000 * point.seconds:.1f}" for point in points}
    return [
        {
            "sequences": str(batch_size),
            "context": str(context_len),
            **{str(size): times.get((batch_size, context_len, size), "") for size in sizes},
        }
        for batch_size, context_len in sorted({(point.batch_size, point.context_len) for point in points})
    ]


def definitions(results: BenchResults) -> str:
    """One paragraph: how the measurement was made, and what its figures mean."""
    emptied = "before every prompt" if results.warmth == "cold" else "before each repeat"
    if results.config.get("url"):
        sources = (
            f"Each strategy had its own namespace of the server's trie, a new one {emptied}. The engine's draft "
            "sources and its KV cache could not be emptied, so a prompt may reuse what an earlier request computed."
        )
    else:
        sources = f"Draft sources were emptied {emptied}, and each strategy had its own."
    return (
        "After a warm-up, all strategies ran each prompt one after the other, in rotating order, in one run. "
        "Acceptance length is generated tokens / steps, where the prefill counts as the step that yields the first "
        "token. Tokens/s includes the time of the prompt; it is the median over repeats of a prompt. The interval is a "
        f"95% bootstrap over prompts and repeats, which is too narrow for a handful of prompts. {sources}"
    )


def markdown_of(results: BenchResults) -> str:
    """The report as Markdown, without plots."""
    parts = [f"# {title_of(results)}", ""]
    for section in sections_of(results):
        parts += [f"## {section.title}", ""]
        if section.text:
            parts += [section.text, ""]
        if section.table:
            parts += [markdown_table(list(section.table[0]), [list(row.values()) for row in section.table]), ""]
    parts += ["## Manifest", "", "```json", json.dumps(results.manifest, indent=2, ensure_ascii=False), "```", ""]
    return "\n".join(parts)


def title_of(results: BenchResults) -> str:
    """Title of the report, with model and profile."""
    model, profile = (results.config.get(key, f"unknown {key}") for key in ("model", "profile"))
    return f"Lookahead bench: {model}, profile {profile}"


def interval_of(row: SummaryRow) -> str:
    """The 95% interval of the speedup; "-" without one."""
    return "-" if row.speedup_low is None else f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"


def _manifest_table(manifest: dict[str, Any]) -> Table:
    """The manifest's scalar entries, nested ones under dotted names."""
    # The resolved config is long and follows in the manifest.
    entries = _entries("", {key: value for key, value in manifest.items() if key != "resolved"})
    return [{"key": key, "value": text} for key, text in entries]


def _entries(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dotted names and texts of the scalars in a JSON value, which has this name itself."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _entries(f"{name}.{key}" if name else str(key), entry)
    elif isinstance(value, list):
        yield name, " ".join(map(str, value))
    else:
        yield name, "-" if value is None else str(value)

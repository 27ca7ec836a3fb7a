"""Bench results -> plots as SVG text for an HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pipeline.bench.report.results import OVERALL, BenchResults
from pipeline.decoding.strategy import STRATEGIES
from pipeline.errors import UserError

# Longer steps are rare and counted in the last bar.
LONGEST_SHOWN_STEP = 16
# One for each length of the context, in a plot of pass times.
LINE_STYLES = ("-", "--", "-.")
# Colour of lines and text on a light and on a dark page.
THEMES = {"light": "#1f2933", "dark": "#f5f7fa"}


def plots_of(results: BenchResults) -> dict[str, str]:
    """Title and SVG text of one plot per kind of figure in the results."""
    plots = {}
    if any(row.speedup is not None and row.strategy != results.baseline for row in results.summary):
        plots[f"Speedup against {results.baseline}, by task"] = _speedup_by_task(results)
    if any(record.draft_tokens for record in results.requests):
        plots["Tokens per step"] = _acceptance_histogram(results)
    if results.concurrency:
        plots["Tokens/s against requests in flight"] = _throughput(results)
    if results.cost_curve:
        plots["Time of a pass by tokens in it, and mean tokens per pass"] = _cost_curve(results)
    return plots


def _speedup_by_task(results: BenchResults, ink: str = "black") -> str:
    colours = _colours(results)
    strategies = [name for name in colours if name != results.baseline]
    tasks = list(dict.fromkeys(row.task for row in results.summary))
    figure, axes = _figure(max(6.0, 0.9 * len(tasks) + 2))
    for strategy, shift, width in _groups(strategies):
        rows = [row for row in results.summary if row.strategy == strategy and row.speedup is not None]
        values = np.array([(row.speedup, row.speedup_low, row.speedup_high) for row in rows], np.float64)
        speedups, low, high = values.reshape(-1, 3).T
        # The estimate may be slightly outside of a percentile interval; a single run has no interval.
        margins = np.nan_to_num(np.maximum(0.0, [speedups - low, high - speedups]))
        axes.bar(
            [tasks.index(row.task) + shift for row in rows],
            speedups,
            width,
            label=strategy,
            color=colours[strategy],
            yerr=margins,
            capsize=2,
            error_kw={"linewidth": 0.8, "ecolor": ink},
        )
    axes.axhline(1.0, color=ink, linewidth=0.8)
    axes.set_xticks(range(len(tasks)), tasks, rotation=25, ha="right")
    axes.set_ylabel("speedup (95% interval)")
    axes.legend(frameon=False, ncols=6, loc="upper left", bbox_to_anchor=(0, 1.17))
    return _svg(figure)


def speed_picture(results: BenchResults, theme: str) -> str:
    """The speedups by task as an SVG file with a transparent background. theme: one of THEMES. Raises UserError if the
    results have no speedups."""
    if not any(row.speedup is not None and row.strategy != results.baseline for row in results.summary):
        raise UserError("The results hold no strategy beside the baseline, so there are no speedups to draw.")
    ink = THEMES[theme]
    with matplotlib.rc_context(
        {
            "text.color": ink,
            "axes.labelcolor": ink,
            "axes.edgecolor": ink,
            "xtick.color": ink,
            "ytick.color": ink,
            "savefig.transparent": True,
        }
    ):
        return _speedup_by_task(results, ink)


def _acceptance_histogram(results: BenchResults) -> str:
    figure, axes = _figure()
    colours = _colours(results)
    strategies = [name for name in colours if any(r.draft_tokens for r in results.requests if r.strategy == name)]
    steps = range(1, LONGEST_SHOWN_STEP + 1)
    for strategy, shift, width in _groups(strategies):
        lengths = [
            min(length, LONGEST_SHOWN_STEP)
            for record in results.requests
            if record.strategy == strategy
            for length in record.acceptance_lengths
        ]
        shares = [lengths.count(length) / max(1, len(lengths)) for length in steps]
        axes.bar([length + shift for length in steps], shares, width, label=strategy, color=colours[strategy])
    axes.set_xticks(steps, [*map(str, steps[:-1]), f"{LONGEST_SHOWN_STEP}+"])
    axes.set_xlabel("tokens emitted by a step")
    axes.set_ylabel("share of steps")
    axes.legend(frameon=False)
    return _svg(figure)


def _throughput(results: BenchResults) -> str:
    rows, colours = results.concurrency, _colours(results)
    figure, axes = _figure()
    for strategy in dict.fromkeys(row.strategy for row in rows):
        own = sorted((row for row in rows if row.strategy == strategy), key=lambda row: row.concurrency)
        axes.plot(
            [row.concurrency for row in own],
            [row.tokens_per_s for row in own],
            marker="o",
            label=strategy,
            color=colours[strategy],
        )
    levels = sorted({row.concurrency for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("output tokens/s")
    axes.legend(frameon=False)
    return _svg(figure)


def _cost_curve(results: BenchResults) -> str:
    figure, axes = _figure()
    points = results.cost_curve
    batch_sizes = sorted({point.batch_size for point in points})
    context_lens = sorted({point.context_len for point in points})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(batch_sizes)))
    for batch_size, context_len in sorted({(point.batch_size, point.context_len) for point in points}):
        own = sorted(
            (point.num_tokens, 1000 * point.seconds)
            for point in points
            if (point.batch_size, point.context_len) == (batch_size, context_len)
        )
        label = f"{batch_size} seq., context {context_len}"
        style = LINE_STYLES[context_lens.index(context_len) % len(LINE_STYLES)]
        shade = shades[batch_sizes.index(batch_size)]
        axes.plot([num for num, _ in own], [ms for _, ms in own], style, color=shade, marker=".", label=label)
    colours = _colours(results)
    for row in results.summary:
        if row.task == OVERALL and row.draft_tokens_per_step and row.strategy in STRATEGIES:
            # The root is computed along with the drafts.
            tokens = row.draft_tokens_per_step + 1
            label = f"{row.strategy}: {tokens:.1f} tokens"
            axes.axvline(tokens, color=colours[row.strategy], linestyle=":", label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens in the pass")
    axes.set_ylabel("ms")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return _svg(figure)


def _colours(results: BenchResults) -> dict[str, str]:
    """A colour per strategy, the same in all plots."""
    names = [row.strategy for row in results.summary] + [row.strategy for row in results.concurrency]
    return {name: f"C{number}" for number, name in enumerate(dict.fromkeys(names))}


def _groups(strategies: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Yield each strategy with the shift and width of its bar within a group."""
    width = 0.8 / max(1, len(strategies))
    for number, strategy in enumerate(strategies):
        yield strategy, (number - (len(strategies) - 1) / 2) * width, width


def _figure(width: float = 7.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    # A fixed salt and no date: the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "lookahead", "svg.fonttype": "path"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # The XML prologue and the doctype do not belong inside HTML.
    return re.sub(r"^.*?(?=<svg )", "", buffer.getvalue(), count=1, flags=re.DOTALL)

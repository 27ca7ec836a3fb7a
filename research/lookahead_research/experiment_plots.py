"""Plots the results of `experiments` as PNG files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Row = dict[str, Any]


@contextmanager
def _axes(path: Path, x_label: str, colour: str = "black") -> Iterator[Any]:
    """Yield axes with tokens per step as y, and write the picture at the end of the block. colour: of the y label."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel("tokens per step", color=colour)
    axes.grid(alpha=0.3)
    yield axes
    figure.savefig(path, dpi=150)


def plot_lengths(path: Path, rows: Sequence[Row], key: str, label: str) -> None:
    """Write a plot of acceptance length against the length `key` of the rows, one line per retrieval strategy. label:
    of the x axis."""
    with _axes(path, label) as axes:
        for retrieval in dict.fromkeys(row["retrieval"] for row in rows):
            chosen = [row for row in rows if row["retrieval"] == retrieval]
            axes.plot([row[key] for row in chosen], [row["acceptance_length"] for row in chosen], "o-", label=retrieval)
        axes.legend()


def plot_capacity(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step and bytes in use against the byte limit of the trie."""
    limits = [row["max_bytes"] / 1024 for row in rows]
    with _axes(path, "byte limit of the trie [KiB]", colour="tab:blue") as axes:
        axes.plot(limits, [row["acceptance_length"] for row in rows], "o-", color="tab:blue")
        axes.set_xscale("log", base=2)
        bytes_axes = axes.twinx()
        bytes_axes.plot(limits, [row["used_bytes"] / 1024 for row in rows], "s--", color="tab:orange")
        bytes_axes.set_ylabel("in use after all texts [KiB]", color="tab:orange")


def plot_compression(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step against the tokens computed per step, one line per n-gram size."""
    with _axes(path, "tokens computed per step, as a multiple of plain decoding (labels: W, G)") as axes:
        for ngram in sorted({row["max_ngram_size"] for row in rows}):
            chosen = [row for row in rows if row["max_ngram_size"] == ngram]
            chosen.sort(key=lambda row: row["flops_multiple"])
            positions = [(row["flops_multiple"], row["step_compression"]) for row in chosen]
            axes.plot(*zip(*positions, strict=True), "o-", label=f"N = {ngram}")
            for row, position in zip(chosen, positions, strict=True):
                text = f"{row['max_window_size']},{row['max_verification_set_size']}"
                axes.annotate(text, position, textcoords="offset points", xytext=(4, -9), fontsize=7)
        axes.set_xscale("log", base=2)
        axes.legend()


def plot_ranks(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step against the number of ranks, and the tokens that the busiest rank computes."""
    ranks = [row["ranks"] for row in rows]
    with _axes(path, "ranks (window and candidates grow with them)", colour="tab:blue") as axes:
        axes.plot(ranks, [row["step_compression"] for row in rows], "o-", color="tab:blue")
        axes.set_xscale("log", base=2)
        work = axes.twinx()
        work.plot(ranks, [row["tokens_per_step"] for row in rows], "^:", color="tab:gray", label="by all")
        busiest = [row["tokens_per_rank"] for row in rows]
        work.plot(ranks, busiest, "s--", color="tab:orange", label="by the busiest rank")
        work.set_ylabel("tokens computed per step")
        work.legend()

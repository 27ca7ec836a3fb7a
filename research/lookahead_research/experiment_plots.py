"""Results of `experiments` -> PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Row = dict[str, Any]


def plot_lengths(path: Path, rows: Sequence[Row], key: str, label: str) -> None:
    """Acceptance length against a length, one line per retrieval strategy."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for retrieval in dict.fromkeys(row["retrieval"] for row in rows):
        chosen = [row for row in rows if row["retrieval"] == retrieval]
        axes.plot([row[key] for row in chosen], [row["acceptance_length"] for row in chosen], "o-", label=retrieval)
    axes.set_xlabel(label)
    axes.set_ylabel("tokens per step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def plot_capacity(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step and bytes in use against the byte limit of the trie."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    limits = [row["max_bytes"] / 1024 for row in rows]
    axes.plot(limits, [row["acceptance_length"] for row in rows], "o-", color="tab:blue")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("byte limit of the trie [KiB]")
    axes.set_ylabel("tokens per step", color="tab:blue")
    axes.grid(alpha=0.3)
    bytes_axes = axes.twinx()
    bytes_axes.plot(limits, [row["used_bytes"] / 1024 for row in rows], "s--", color="tab:orange")
    bytes_axes.set_ylabel("in use after all texts [KiB]", color="tab:orange")
    figure.savefig(path, dpi=150)


def plot_compression(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step against the arithmetic of a step, a line per n-gram size."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for ngram in sorted({row["max_ngram_size"] for row in rows}):
        chosen = sorted((row for row in rows if row["max_ngram_size"] == ngram), key=lambda row: row["flops_multiple"])
        multiples = [row["flops_multiple"] for row in chosen]
        compression = [row["step_compression"] for row in chosen]
        axes.plot(multiples, compression, "o-", label=f"N = {ngram}")
        for row, x, y in zip(chosen, multiples, compression, strict=True):
            text = f"{row['max_window_size']},{row['max_verification_set_size']}"
            axes.annotate(text, (x, y), textcoords="offset points", xytext=(4, -9), fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens computed per step, as a multiple of plain decoding (labels: W, G)")
    axes.set_ylabel("tokens per step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def plot_ranks(path: Path, rows: Sequence[Row]) -> None:
    """Tokens per step against the number of ranks, and what the busiest of them computes."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    ranks = [row["ranks"] for row in rows]
    axes.plot(ranks, [row["step_compression"] for row in rows], "o-", color="tab:blue")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("ranks (window and candidates grow with them)")
    axes.set_ylabel("tokens per step", color="tab:blue")
    axes.grid(alpha=0.3)
    work = axes.twinx()
    work.plot(ranks, [row["tokens_per_step"] for row in rows], "^:", color="tab:gray", label="by all")
    work.plot(ranks, [row["tokens_per_rank"] for row in rows], "s--", color="tab:orange", label="by the busiest rank")
    work.set_ylabel("tokens computed per step")
    work.legend()
    figure.savefig(path, dpi=150)

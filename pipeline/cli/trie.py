"""The verbs that tend tries: trie build, inspect, prune, merge, and bench-trie, which measures one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.lists import words
from pipeline.cli.options import MOST_DRAFT_TOKENS, Json
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.bench.trie_bench import Measurement
    from pipeline.decoding.trie import Trie

BranchLength = Annotated[int, typer.Option("--branch-length", help="Tokens stored per branch.", min=1, max=64)]
# 64 GiB: the rows of a trie are numbered with 31 bits.
MOST_MIB = 65536
# Tokens of the largest stream that fits into the memory of an ordinary machine, with a trie of them.
MOST_TOKENS = 10**8
MaxMib = Annotated[float, typer.Option("--max-mib", help="Hard memory limit in MiB.", min=0.0625, max=MOST_MIB)]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Folder with tokenizer.json, for rows of text."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Snapshot to write.")]
Snapshot = Annotated[Path, typer.Argument(help="Snapshot of a trie.")]


def register(app: typer.Typer) -> None:
    trie = typer.Typer(help="Build, look into, prune and merge snapshots of tries.", no_args_is_help=True)
    for command in (build, inspect, prune, merge):
        trie.command()(command)
    app.add_typer(trie, name="trie")
    app.command()(bench_trie)


def build(
    files: Annotated[
        list[Path],
        typer.Argument(help="JSON Lines of {token_ids}, {prompt_ids, output_ids} or {text}, a bench's JSON, or texts."),
    ],
    out: Out,
    tokenizer: Tokenizer = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Tenant that may see these texts.")] = "",
    prompts: Annotated[bool, typer.Option("--prompts", help="Take in prompt_ids, too, not only outputs.")] = False,
    branch_length: BranchLength = 12,
    max_mib: MaxMib = 64.0,
    as_json: Json = False,
) -> None:
    """Make a trie from past outputs, so that a server starts warm."""
    from pipeline.bench.token_rows import token_sequences
    from pipeline.decoding.trie.snapshot import save_trie

    encode = _encoder(tokenizer)
    trie = _new_trie(branch_length, max_mib)
    num_rows = num_tokens = 0
    with output.progress() as bar:
        task = bar.add_task("insert", total=len(files))
        for path in files:
            for tokens in token_sequences(path, encode, prompts):
                trie.insert(tokens, namespace)
                num_rows += 1
                num_tokens += len(tokens)
                bar.update(task, description=f"insert {path.name}: {num_tokens:,} tokens")
            bar.advance(task)
    if not num_tokens:
        raise UserError(f"No tokens were found in {', '.join(map(str, files))}; nothing was written.")
    save_trie(trie, out)
    output.note(f"{num_tokens:,} tokens of {num_rows:,} rows -> {out}")
    _show(trie, out, as_json)


def inspect(
    snapshot: Snapshot,
    check: Annotated[bool, typer.Option("--check", help="Also check every node.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a snapshot holds."""
    from pipeline.decoding.trie.snapshot import load_trie

    trie = load_trie(snapshot)
    if check:
        try:
            trie.check()
        except ValueError as error:
            raise UserError(f"{snapshot}: {error}. Build it again.") from error
    _show(trie, snapshot, as_json)


def prune(
    snapshot: Snapshot,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write; the file itself if not given.")
    ] = None,
    times: Annotated[int, typer.Option("--times", help="How often to halve the counts.", min=1, max=31)] = 1,
    as_json: Json = False,
) -> None:
    """Halve all counts and drop the strings that were seen too seldom to have any left."""
    from pipeline.decoding.trie.snapshot import load_trie, save_trie

    trie = load_trie(snapshot)
    before = trie.statistics.num_nodes
    for _ in range(times):
        trie.prune()
    save_trie(trie, out or snapshot)
    output.note(f"{before:,} -> {trie.statistics.num_nodes:,} nodes")
    _show(trie, out or snapshot, as_json)


def merge(
    snapshots: Annotated[list[Path], typer.Argument(help="Snapshots, the most valuable last: it is forgotten last.")],
    out: Out,
    max_mib: MaxMib = 64.0,
    as_json: Json = False,
) -> None:
    """Put the texts of several snapshots into one trie; namespaces stay apart."""
    from pipeline.decoding.trie.snapshot import load_trie, save_trie

    tries = [load_trie(path) for path in snapshots]
    lengths = sorted({trie.branch_length for trie in tries})
    if len(lengths) > 1:
        raise UserError(
            f"The snapshots have branch lengths {', '.join(map(str, lengths))}; only equal ones can be merged."
        )
    merged = _new_trie(lengths[0], max_mib)
    with output.progress() as bar:
        task = bar.add_task("merge", total=len(tries))
        for trie in tries:
            merged.merge(trie)
            bar.advance(task)
    save_trie(merged, out)
    _show(merged, out, as_json)


def bench_trie(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Token rows or texts; a synthetic stream if none is given."),
    ] = None,
    tokenizer: Tokenizer = None,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Tokens to measure at; a list such as 1e5,1e6,1e7.")
    ] = "1e5,1e6",
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of a draft tree.", min=1, max=MOST_DRAFT_TOKENS)] = 64,
    branch_length: BranchLength = 12,
    max_mib: Annotated[
        float | None,
        typer.Option("--max-mib", help="Memory limit in MiB; unbounded if not given.", min=0.0625, max=MOST_MIB),
    ] = None,
    queries: Annotated[int, typer.Option("--queries", help="Draft trees asked for at each size.", min=1)] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Of the synthetic stream.", min=0)] = 0,
    peers: Annotated[str, typer.Option("--peers", help="Measured as well: prompt-lookup (transformers).")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here as JSON.")] = None,
) -> None:
    """Measure insertion, memory and retrieval of the trie, and of others on the same text."""
    import json

    from pipeline.bench import trie_bench
    from pipeline.bench.results import require_writable, save_text
    from pipeline.bench.token_rows import token_sequences
    from pipeline.bench.trie_bench import SEQUENCE_LEN, synthetic_sequences
    from pipeline.bench.trie_peers import PEERS, choose_peers

    try:
        numbers = sorted(int(float(part)) for part in sizes.split(","))
    except (ValueError, OverflowError) as error:
        raise UserError(f"--sizes is {sizes!r}; give numbers separated by commas, such as 1e5,1e6.") from error
    if not 1 <= numbers[0] <= numbers[-1] <= MOST_TOKENS:
        raise UserError(f"--sizes is {sizes!r}; every size must be in 1 .. {MOST_TOKENS:,}.")
    if json_path is not None:
        require_writable(json_path)
    if files:
        encode = _encoder(tokenizer)
        texts = [tokens for path in files for tokens in token_sequences(path, encode, with_prompts=True)]
        sequences = [text[at : at + SEQUENCE_LEN] for text in texts for at in range(0, len(text), SEQUENCE_LEN)]
        if sum(map(len, sequences)) < 100:
            raise UserError("The files hold fewer than 100 tokens; give more text.")
    else:
        sequences = synthetic_sequences(int(numbers[-1] * 1.02) + SEQUENCE_LEN, seed)
    names = choose_peers(words("--peers", peers) if peers else [])
    room = sum(map(len, sequences))
    others = {name: PEERS[name](room, trie_bench.CONTEXT_LEN, nodes) for name in names}
    # Refuses what makes no trie before anything is measured.
    max_bytes = None if max_mib is None else _new_trie(branch_length, max_mib).max_bytes
    with output.progress() as bar:
        task = bar.add_task("insert", total=numbers[-1])
        results = trie_bench.bench_trie(
            sequences,
            numbers,
            branch_length,
            nodes,
            max_bytes,
            queries,
            lambda done: bar.update(task, completed=done),
            others,
        )
    if json_path is not None:
        save_text(json_path, json.dumps(trie_bench.measurement_rows(results), indent=1) + "\n")
    output.table(
        [
            "tokens",
            "held",
            "insert tok/s",
            "worst ms",
            "B/token",
            "MiB",
            "drafts",
            "accepted",
            "ask us p50",
            "p99",
            "max",
        ],
        [
            (
                f"{row.num_tokens:,}",
                f"{row.num_held:,}",
                f"{row.insert_tokens_per_s:,.0f}",
                f"{row.insert_worst_ms:.1f}",
                f"{row.bytes_per_token:.0f}",
                f"{row.allocated_bytes / (1 << 20):.0f}",
                *_asking(row),
            )
            for row in results
            if isinstance(row, trie_bench.TrieMeasurement)
        ],
    )
    if others:
        output.table(
            ["peer", "tokens", "insert tok/s", "drafts", "accepted", "ask us p50", "p99", "max"],
            [
                (row.source, f"{row.num_tokens:,}", f"{row.insert_tokens_per_s:,.0f}", *_asking(row))
                for row in results
                if not isinstance(row, trie_bench.TrieMeasurement)
            ],
        )


def _asking(row: Measurement) -> tuple[str, ...]:
    return (
        f"{row.mean_draft_nodes:.0f}",
        f"{row.mean_accepted:.2f}",
        f"{row.retrieval_us_p50:,.0f}",
        f"{row.retrieval_us_p99:,.0f}",
        f"{row.retrieval_us_max:,.0f}",
    )


def _new_trie(branch_length: int, max_mib: float) -> Trie:
    from pipeline.decoding.trie import Trie

    try:
        return Trie(branch_length, int(max_mib * (1 << 20)))
    except ValueError as error:
        raise UserError(f"--max-mib is {max_mib}: {error}.") from error
    except (MemoryError, OSError) as error:
        raise UserError(f"--max-mib is {max_mib:g}; this machine does not have that much memory.") from error


def _encoder(folder: Path | None) -> Callable[[str], list[int]] | None:
    if folder is None:
        return None
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise UserError(f"--tokenizer is {folder}; there is no such folder.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"--tokenizer is {folder}; no tokenizer can be loaded from there ({error}).") from error
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _show(trie: Trie, path: Path, as_json: bool) -> None:
    statistics = trie.statistics
    rows = {
        "file": str(path),
        "branch_length": trie.branch_length,
        "max_bytes": trie.max_bytes,
        "tokens_held": statistics.num_tokens,
        "slots_forgotten": statistics.num_forgotten,
        "nodes": statistics.num_nodes,
        "bytes_used": statistics.used_bytes,
        "bytes_per_token": round(statistics.used_bytes / max(statistics.num_tokens, 1), 1),
        "namespaces": sorted(trie.roots),
    }
    if as_json:
        output.print_json(rows)
    else:
        names = ", ".join(repr(name) for name in sorted(trie.roots)[:10])
        more = f" and {len(trie.roots) - 10} more" if len(trie.roots) > 10 else ""
        output.table(["", ""], [*list(rows.items())[:-1], ("namespaces", names + more)])

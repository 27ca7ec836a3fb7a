"""The commands for trie snapshots: trie build, inspect, prune, merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json, input_path, output_file, output_location
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.decoding.trie import Trie

BranchLength = Annotated[int, typer.Option("--branch-length", help="Tokens stored per branch.", min=1, max=64)]
# 64 GiB: rows of a trie have 31-bit indices.
MOST_MIB = 65536
MaxMib = Annotated[float, typer.Option("--max-mib", help="Hard memory limit in MiB.", min=0.0625, max=MOST_MIB)]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Folder with tokenizer.json; needed for rows of text."),
]
Out = Annotated[
    str,
    output_file(
        "--out", "-o", what="Snapshot to write: a file, or a URL such as s3://bucket/key", parser=output_location
    ),
]
Snapshot = Annotated[str, typer.Argument(help="Snapshot of a trie: a file or a URL.")]


trie = typer.Typer(help="Build, inspect, prune and merge snapshots of tries.", no_args_is_help=True)


@trie.command()
def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON Lines of {token_ids}, {prompt_ids, output_ids} or {text}, a bench's JSON, or texts (- is a text "
            "from standard input).",
            parser=input_path,
        ),
    ],
    out: Out,
    tokenizer: Tokenizer = None,
    namespace: Annotated[
        str,
        typer.Option("--namespace", help="Namespace of these texts. Only requests of this namespace draft from them."),
    ] = "",
    prompts: Annotated[bool, typer.Option("--prompts", help="Store prompt_ids too, not only outputs.")] = False,
    branch_length: BranchLength = 12,
    max_mib: MaxMib = 64.0,
    as_json: Json = False,
) -> None:
    """Build the initial trie of a server from past outputs."""
    from pipeline.bench.data.token_rows import token_sequences
    from pipeline.bench.report.results import require_other
    from pipeline.decoding.trie.snapshot import save_trie

    require_other(Path(out), *files)
    encode = encoder(tokenizer)
    trie = new_trie(branch_length, max_mib)
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


@trie.command()
def inspect(snapshot: Snapshot, as_json: Json = False) -> None:
    """Print the contents of a snapshot."""
    from pipeline.decoding.trie.snapshot import load_trie

    _show(load_trie(snapshot), snapshot, as_json)


@trie.command()
def prune(
    snapshot: Snapshot,
    out: Annotated[
        str | None,
        output_file("--out", "-o", what="Output file or URL; default: the snapshot itself", parser=output_location),
    ] = None,
    times: Annotated[int, typer.Option("--times", help="Number of times to halve the counts.", min=1, max=31)] = 1,
    as_json: Json = False,
) -> None:
    """Halve all counts and drop the strings whose count becomes zero."""
    from pipeline.decoding.trie.snapshot import load_trie, save_trie

    trie = load_trie(snapshot)
    before = trie.num_nodes
    for _ in range(times):
        trie.prune()
    save_trie(trie, out or snapshot)
    output.note(f"{before:,} -> {trie.num_nodes:,} nodes")
    _show(trie, out or snapshot, as_json)


@trie.command()
def merge(
    snapshots: Annotated[
        list[str],
        typer.Argument(help="Snapshots: files or URLs. Put the most important one last, because it is forgotten last."),
    ],
    out: Out,
    max_mib: MaxMib = 64.0,
    as_json: Json = False,
) -> None:
    """Merge several snapshots into one trie, such as those of the servers of a fleet.

    Namespaces stay separate. The count of a text is its highest count in a snapshot."""
    from pipeline.decoding.trie.merging import merge_tries
    from pipeline.decoding.trie.snapshot import read_snapshot, save_trie

    contents = [read_snapshot(path) for path in snapshots]
    lengths = sorted({content.branch_length for content in contents})
    if len(lengths) > 1:
        raise UserError(
            f"The snapshots have branch lengths {', '.join(map(str, lengths))}; only equal ones can be merged."
        )
    merged = new_trie(lengths[0], max_mib)
    with output.progress() as bar:
        merge_tries(merged, bar.track(contents, description="merge"))
    save_trie(merged, out)
    _show(merged, out, as_json)


def new_trie(branch_length: int, max_mib: float) -> Trie:
    """Return an empty trie. Raises UserError if the machine cannot hold it."""
    from pipeline.decoding.trie import Trie

    try:
        return Trie(branch_length, int(max_mib * (1 << 20)))
    except ValueError as error:
        raise UserError(f"--max-mib is {max_mib}: {error}.") from error
    except MemoryError as error:
        raise UserError(f"--max-mib is {max_mib:g}; this machine does not have that much memory.") from error


def encoder(folder: Path | None) -> Callable[[str], list[int]] | None:
    """Return the function that tokenizes texts. Raises UserError if the folder has no tokenizer that can be loaded."""
    if folder is None:
        return None
    from pipeline.triton_models.text_codec import load_codec

    if not any((folder / f"tokenizer{end}").is_file() for end in (".json", ".model", "_config.json")):
        raise UserError(f"--tokenizer is {folder}; it must be a folder with a tokenizer, such as tokenizer.json.")
    codec = load_codec(folder)
    return lambda text: codec.encode(text, add_special_tokens=False).tolist()


def _show(trie: Trie, path: str, as_json: bool) -> None:
    statistics = trie.statistics
    rows = {
        "file": path,
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
        names = ", ".join(repr(name) if name else "(default)" for name in sorted(trie.roots)[:10])
        more = f" and {len(trie.roots) - 10} more" if len(trie.roots) > 10 else ""
        output.table(["", ""], [*list(rows.items())[:-1], ("namespaces", names + more)])

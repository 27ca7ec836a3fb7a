"""The command bench-trie."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookahead_research.cli.options import MOST_DRAFT_TOKENS
from pipeline.cli import output
from pipeline.cli.options import numbers, output_file, words
from pipeline.cli.trie import BranchLength, MaxMib, Tokenizer, encoder, new_trie

if TYPE_CHECKING:
    from lookahead_research.trie_bench import Measurement

# Maximum number of tokens. An ordinary machine can hold them and their trie in memory.
MOST_TOKENS = 10**8


def bench_trie(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of token rows or texts. Default: a synthetic stream."),
    ] = None,
    tokenizer: Tokenizer = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Numbers of inserted tokens, such as 1e5,1e6,1e7.")] = "1e5,1e6",
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of a draft tree.", min=1, max=MOST_DRAFT_TOKENS)] = 64,
    branch_length: BranchLength = 12,
    max_mib: MaxMib = 128.0,
    queries: Annotated[int, typer.Option("--queries", help="Draft trees retrieved at each size.", min=1)] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the synthetic stream.", min=0)] = 0,
    peers: Annotated[str, typer.Option("--peers", help="Further draft sources: prompt-lookup (of transformers).")] = "",
    json_path: Annotated[Path | None, output_file("--json", what="Output file in JSON")] = None,
) -> None:
    """Measure insertion, memory and retrieval of the trie, and of other sources on the same text."""
    from lookahead_research import trie_bench
    from lookahead_research.trie_peers import PEERS, create_peers
    from pipeline.bench.data.token_rows import token_sequences
    from pipeline.bench.report.results import require_writable, save_rows

    ascending = sorted(numbers("--sizes", sizes, MOST_TOKENS))
    if json_path is not None:
        require_writable(json_path, *(files or []))
    if files:
        encode = encoder(tokenizer)
        texts = [tokens for path in files for tokens in token_sequences(path, encode, with_prompts=True)]
        sequences = trie_bench.split_texts(texts)
    else:
        sequences = trie_bench.synthetic_stream(ascending[-1], seed)
    max_tokens = sum(map(len, sequences))
    others = create_peers(words("--peers", peers, PEERS) if peers else [], max_tokens, trie_bench.CONTEXT_LEN, nodes)
    # Raises UserError for an impossible memory limit.
    max_bytes = new_trie(branch_length, max_mib).max_bytes
    with output.progress() as bar:
        task = bar.add_task("insert", total=ascending[-1])
        results = trie_bench.bench_trie(
            sequences,
            ascending,
            branch_length,
            nodes,
            max_bytes,
            queries,
            lambda done: bar.update(task, completed=done),
            others,
        )
    if json_path is not None:
        save_rows(json_path, [asdict(row) for row in results])
    _show(results)


def _show(results: list[Measurement]) -> None:
    from lookahead_research.trie_bench import TrieMeasurement

    output.records(
        {
            "tokens": f"{row.num_tokens:,}",
            "held": f"{row.num_held:,}",
            "insert tok/s": f"{row.insert_tokens_per_s:,.0f}",
            "worst ms": f"{row.insert_worst_ms:.1f}",
            "B/token": f"{row.bytes_per_token:.0f}",
            "MiB": f"{row.allocated_bytes / (1 << 20):.0f}",
            **_retrieval(row),
        }
        for row in results
        if isinstance(row, TrieMeasurement)
    )
    if peers := [row for row in results if not isinstance(row, TrieMeasurement)]:
        output.records(
            {
                "peer": row.source,
                "tokens": f"{row.num_tokens:,}",
                "insert tok/s": f"{row.insert_tokens_per_s:,.0f}",
                **_retrieval(row),
            }
            for row in peers
        )


def _retrieval(row: Measurement) -> dict[str, str]:
    return {
        "drafts": f"{row.mean_draft_nodes:.0f}",
        "accepted": f"{row.mean_accepted:.2f}",
        "retrieval us p50": f"{row.retrieval_us_p50:,.0f}",
        "p99": f"{row.retrieval_us_p99:,.0f}",
        "max": f"{row.retrieval_us_max:,.0f}",
    }

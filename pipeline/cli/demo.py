"""`lookahead demo`: new prompts with and without drafts, then one prompt again over every protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.bench.verify.verify import epsilon_of
from pipeline.cli import output
from pipeline.cli.options import require_engine_of_server
from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact, artifact_dir, load_artifact
from pipeline.errors import ServerError
from pipeline.repository.names import REPOSITORY
from pipeline.server.client import Completion, Protocol, TextQuery, complete
from pipeline.server.run_folders import temporarily
from pipeline.server.server import RunningServer
from pipeline.server.startup import check_start, launch, prepare
from pipeline.server.state import ServerState

PROMPTS = (
    "Rewrite this function with type hints and keep everything else as it is:\n\n"
    "def greatest_common_divisor(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\n"
    "def least_common_multiple(a, b):\n    return a * b // greatest_common_divisor(a, b)\n",
    "Why is the sky blue? Explain it to a child.",
    "Summarise in one sentence: A trie stores words by their letters, so that words with the same beginning share it. "
    "Looking a word up takes as many steps as the word has letters, however many words the trie holds.",
)


class _Way(NamedTuple):
    """How a client sends a request."""

    protocol: Protocol
    stream: bool


_WAYS = (_Way("grpc", True), _Way("grpc", False), _Way("http", True), _Way("http", False))


def run_demo(resolved: ResolvedConfig, folders: Folders, max_tokens: int) -> None:
    """Serve, send requests and compare. Raises ServerError as `report_differences`, and as
    `require_engine_of_server`."""
    check_start(resolved, folders)
    require_engine_of_server(resolved)
    query = TextQuery(
        PROMPTS[0],
        max_tokens,
        use_chat_template=resolved.model.chat_template or None,
        return_statistics=True,
    )

    def start(folder: Path) -> RunningServer:
        # In its own folder, because a server may run from the repository beside the engine.
        with output.working("building the engine") as note:
            served = prepare(resolved, folders, folder / REPOSITORY, note)
        with output.working("starting the server") as note:
            return launch(served, folders, folder, note=note)

    with temporarily(start, on_stop=lambda: output.note("stopping the server")) as running:
        state = running.state
        output.say(f"{state.model} ({state.profile}) on gRPC {state.grpc_url} and HTTP {state.http_url}\n")
        fresh = {
            prompt: _both(replace(query, text_input=prompt), state, drafts_first=number % 2 == 1)
            for number, prompt in enumerate(PROMPTS)
        }
        again = {way: _ask(replace(query, strategy="auto"), way, state) for way in _WAYS}
    if not _report(fresh, again):
        folder = artifact_dir(folders, resolved.model.name, resolved.profile.name)
        report_differences(load_artifact(folder, folders.cache, check_runnable=False))


def report_differences(artifact: Artifact) -> None:
    """Print a note that two outputs of a prompt differ. Raises ServerError if passes of the engine do not round
    differently, so that this is a fault."""
    text = "The outputs differ; run `lookahead verify` to see where"
    if not epsilon_of(artifact):
        raise ServerError(f"{text}.")
    output.note(f"{text}, and whether rounding in 16 bit explains it.")


def _both(query: TextQuery, state: ServerState, drafts_first: bool) -> dict[str, Completion]:
    """Return the completions of a new prompt without and with drafts, and print their text as it arrives. The second
    completion finds the prompt in the KV cache, so callers alternate the order."""
    found = {}
    order = [("none", "without drafts"), ("auto", "with drafts")]
    for strategy, words in reversed(order) if drafts_first else order:
        output.say(f"--- {words}: {query.text_input.splitlines()[0]}")
        found[strategy] = _ask(replace(query, strategy=strategy), _WAYS[0], state, output.write)
        output.say("\n")
    return found


def _ask(
    query: TextQuery, way: _Way, state: ServerState, on_text: Callable[[str], None] = lambda text: None
) -> Completion:
    url = state.grpc_url if way.protocol == "grpc" else state.http_url
    return complete(replace(query, stream=way.stream), url, way.protocol, on_text=on_text)


def _report(fresh: dict[str, dict[str, Completion]], again: dict[_Way, Completion]) -> bool:
    """Print both tables. Returns whether all outputs of each prompt are the same."""
    rows = []
    for strategy in ("none", "auto"):
        found = [both[strategy] for both in fresh.values()]
        same = all(_ids(both[strategy]) == _ids(both["none"]) for both in fresh.values())
        rows.append((strategy, *_figures(found), "yes" if same else "NO"))
    output.table(
        ["strategy", "tokens", "tokens/s", "tokens per step", "identical"],
        rows,
        title=f"{len(fresh)} new prompts, without drafts (none) and with drafts (auto)",
    )
    reference = _ids(fresh[PROMPTS[0]]["none"])
    repeats = [
        (
            way.protocol,
            "yes" if way.stream else "no",
            *_figures([completion]),
            "yes" if _ids(completion) == reference else "NO",
        )
        for way, completion in again.items()
    ]
    output.table(
        ["protocol", "streaming", "tokens", "tokens/s", "tokens per step", "identical"],
        repeats,
        title="The first prompt again, with drafts: the trie holds its output now, so this does not measure new text",
    )
    return all(row[-1] == "yes" for row in (*rows, *repeats))


def _ids(completion: Completion) -> list[int]:
    assert completion.statistics is not None, "the request has return_statistics"
    ids: list[int] = completion.statistics["output_ids"]
    return ids


def _figures(completions: list[Completion]) -> tuple[str, str, str]:
    """Tokens, tokens per second and tokens per step of all completions together."""
    tokens = sum(len(_ids(completion)) for completion in completions)
    seconds = sum(completion.total_s for completion in completions)
    steps = sum((completion.statistics or {})["num_steps"] for completion in completions)
    return str(tokens), f"{tokens / seconds:.1f}", f"{tokens / steps:.2f}"

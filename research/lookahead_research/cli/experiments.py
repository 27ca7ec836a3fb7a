"""The command experiments, which repeats the papers' experiments on known outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookahead_research.cli.options import Outputs
from pipeline.cli import output
from pipeline.cli.options import (
    DEFAULT_PROFILE,
    Profile,
    Set,
    limit_to,
    numbers,
    require_engine_of_server,
    resolve,
)
from pipeline.errors import UserError

if TYPE_CHECKING:
    from lookahead_research.known_outputs import ReplayRow
    from pipeline.config.schema import LookaheadConfig, ResolvedConfig
    from pipeline.engine.contract import Engine


DECODING_LENGTHS = (2, 4, 8, 16, 32, 64, 128)
BRANCH_LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32)
CAPACITIES = tuple(1 << exponent for exponent in range(16, 25))
DECODING_LENGTH = 64
# Maximum number of ranks of an engine.
MOST_RANKS = 64
SIZES = "3,3,3;5,3,5;10,3,10;3,5,3;5,5,5;7,5,7"


def experiments(
    outputs: Outputs,
    out: Annotated[Path, typer.Option("--out", help="Folder for the JSON and PNG files.")] = Path("results"),
    limit: Annotated[int | None, limit_to("outputs")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model of the outputs, to run W, N, G on its engine as well."),
    ] = None,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Values of W,N,G, separated by semicolons.")] = SIZES,
    ranks: Annotated[
        str,
        typer.Option(
            "--ranks", help="Numbers of ranks, such as 1,2,4,8, to measure instead of the rest; requires --model."
        ),
    ] = "",
    rank_size: Annotated[
        str, typer.Option("--rank-size", help="W,N,G of one rank; n ranks have n W and n G.")
    ] = "3,3,3",
) -> None:
    """Measure acceptance length against decoding length, branch length and trie memory. With --model also against W, N
    and G, or only against the number of ranks."""
    from lookahead_research.experiments import require_fit
    from lookahead_research.known_outputs import load_replay_rows, require_vocabulary
    from pipeline.bench.report.results import require_writable

    chosen, one = [_size("--sizes", part) for part in sizes.split(";")], _size("--rank-size", rank_size)
    counts = sorted(numbers("--ranks", ranks, MOST_RANKS)) if ranks else []
    rows = load_replay_rows(outputs)[:limit]
    if model is None and (ranks or overrides):
        raise UserError("--ranks and --set need a model; name the model of the outputs with --model.")
    for name in ("ranks",) if ranks else ("decoding_length", "branch_length", "capacity", "lookahead"):
        require_writable(out / f"{name}.json")
    # Errors of the model come first, because the trie's experiments are slow.
    loaded = None if model is None else _engine(model, profile, overrides)
    if loaded is not None:
        require_vocabulary(rows, loaded[0].limits.vocab_size)
    if not ranks:
        if loaded is not None:
            require_fit(chosen, loaded[0])
        _run_trie(rows, out)
    if loaded is not None:
        _run_engine(rows, out, *loaded, chosen, counts, one)
    output.say(f"results are in {out}")


def _run_trie(rows: list[ReplayRow], out: Path) -> None:
    from lookahead_research.experiment_plots import plot_capacity, plot_lengths
    from lookahead_research.experiments import RETRIEVALS, by_capacity, by_length
    from pipeline.bench.report.results import save_rows

    num_runs = len(RETRIEVALS) * (len(DECODING_LENGTHS) + len(BRANCH_LENGTHS)) + len(CAPACITIES)
    with output.steps("replaying", num_runs * len(rows)) as step:
        on_row = partial(step, "replaying")
        for name, lengths, label in (
            ("decoding_length", DECODING_LENGTHS, "decoding length (draft tokens per step)"),
            ("branch_length", BRANCH_LENGTHS, "branch length (longest drafted path)"),
        ):
            found = by_length(rows, name, lengths, DECODING_LENGTH, on_row)
            save_rows(out / f"{name}.json", found)
            plot_lengths(out / f"{name}.png", found, name, label)
        found = by_capacity(rows, CAPACITIES, DECODING_LENGTH, on_row)
        save_rows(out / "capacity.json", found)
        plot_capacity(out / "capacity.png", found)


def _run_engine(
    rows: list[ReplayRow],
    out: Path,
    engine: Engine,
    resolved: ResolvedConfig,
    sizes: list[LookaheadConfig],
    ranks: list[int],
    one: LookaheadConfig,
) -> None:
    """Measure the sizes, or instead the numbers of ranks if there are any. The file is updated after each."""
    from lookahead_research.experiment_plots import plot_compression, plot_ranks
    from lookahead_research.experiments import by_lookahead_sizes, by_ranks
    from pipeline.bench.report.results import save_rows

    chunk, found = resolved.profile.engine.prefill_chunk, []
    name, plot = ("ranks", plot_ranks) if ranks else ("lookahead", plot_compression)
    with output.steps("generating", len(ranks or sizes) * len(rows)) as step:
        on_row = partial(step, "generating")
        for result in (
            by_ranks(rows, engine, one, ranks, chunk, on_row)
            if ranks
            else by_lookahead_sizes(rows, engine, sizes, chunk, on_row)
        ):
            found.append(result)
            save_rows(out / f"{name}.json", found)
    plot(out / f"{name}.png", found)
    output.table(
        [name.replace("_", " ") for name in found[0]], [[_short(value) for value in row.values()] for row in found]
    )


def _engine(model: str, profile: str, overrides: list[str] | None) -> tuple[Engine, ResolvedConfig]:
    from pipeline.config.folders import folders
    from pipeline.engine.build import build_engine
    from pipeline.engine.torch.load import load_engine

    resolved = resolve(model, profile, overrides)
    if resolved.backend != "torch":
        raise UserError(f"Profile {profile} is for {resolved.backend}; W, N and G run on the torch backend only.")
    require_engine_of_server(resolved)
    with output.working("opening the engine") as note:
        return load_engine(build_engine(resolved, folders(), note=note).artifact), resolved


def _short(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else value


def _size(option: str, text: str) -> LookaheadConfig:
    from pipeline.config.schema import LookaheadConfig

    try:
        w, n, g = (int(number) for number in text.split(","))
        return LookaheadConfig.of(w, n, g)
    except ValueError as error:
        raise UserError(f"{option} holds {text!r}; give W,N,G as whole numbers, such as 5,3,5.") from error

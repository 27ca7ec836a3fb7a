"""Options that several commands share, their resolution to a ResolvedConfig, and lists of words or numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import output
from pipeline.config.folders import folders
from pipeline.errors import ConfigError, UserError
from pipeline.files import STDOUT

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig
    from pipeline.engine.artifact import Artifact
    from pipeline.server.state import ServerState

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_PROFILE = "latency"
# Limit of requests in flight: each has a thread in this process.
MOST_REQUESTS = 1024


def input_path(written: str) -> Path:
    """Path of an input file; `-` is standard input."""
    return Path("/dev/stdin" if written == "-" else written)


def output_location(written: str) -> str:
    """Path or URL of an output file; `-` is standard output. Other results then go to stderr."""
    location = str(STDOUT) if written == "-" else written
    if location == str(STDOUT):
        output.results_to_stderr()
    return location


def output_path(written: str) -> Path:
    """Path of an output file, see `output_location`."""
    return Path(output_location(written))


def output_file(*names: str, what: str, parser: Callable[[str], object] = output_path) -> Any:
    """An option that names an output file. what: content of the file."""
    return typer.Option(*names, help=f"{what}; - is standard output.", parser=parser, metavar="<path>")


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Name from `lookahead models` or of a built engine, a model YAML, a checkpoint folder, a GGUF file, or "
        "owner/name on the hub.",
        show_default=True,
    ),
]
Profile = Annotated[str, typer.Option("--profile", "-p", help="Name from `lookahead profiles`, or a profile YAML.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one value: engine.max_batch_size=8, or model.dtype=bfloat16 for a key of the model. Repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="With --dry-run: print the whole config too.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]

# Options of the commands that measure.
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Prompts: JSON Lines of {id, task, prompt} or {id, task, turns} (- is standard input), or a .txt with one "
        "per line; default: twelve built-in ones.",
        parser=input_path,
        metavar="<path>",
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategies", help="Strategies, e.g. none,trie,hybrid; default: all that the profile has draft sources for."
    ),
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Limit of output tokens.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send the prompts without the chat template.")]
Temperature = Annotated[
    float, typer.Option("--temperature", min=0.0, help="Sampling temperature; 0 is greedy decoding.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Sampling seed.")]
AllowRemote = Annotated[bool, typer.Option("--allow-remote", help="Allow a server on another machine.")]


def limit_to(what: str) -> Any:
    """The option --limit of a command that reads a file. what: name of the file's items."""
    return typer.Option("--limit", min=1, help=f"Only the first N {what}.")


def given(context: typer.Context) -> dict[str, str]:
    """Options and arguments on the command line: the option by the name of its parameter."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in context.command.params
        if (source := context.get_parameter_source(str(parameter.name))) and source.name == "COMMANDLINE"
    }


def refuse_given(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Raise UserError if one of these parameters is on the command line. reason: such as "with --grammar"."""
    for name, option in given(context).items():
        if name in names:
            raise UserError(f"{option} has no effect {reason}; leave it out.")


def resolve(model: str, profile: str, overrides: Sequence[str] | None = None) -> ResolvedConfig:
    """Resolve the config of a command. Raises ConfigError with all faults."""
    from pipeline.config.resolution import resolve_config

    return resolve_config(model, profile, tuple(overrides or ()), note=output.note)


def running_server() -> ServerState | None:
    """The server that `lookahead serve` started, if it runs."""
    from pipeline.server.run_folders import run_dir
    from pipeline.server.state import find_server

    return find_server(run_dir(folders()))


def require_in_process(resolved: ResolvedConfig, what: str) -> None:
    """Raise UserError if engines of the backend run in a server only; before the build of one. what: an option or a
    command, at the beginning of the sentence."""
    from pipeline.engine.backend import backend_of

    if not backend_of(resolved.backend).in_process:
        raise UserError(
            f"{what} needs an engine in this process, and those of backend {resolved.backend} run in a server only. "
            "Use --set backend=torch, or measure through a server: `lookahead serve --background`, then `lookahead "
            "bench --url`."
        )


def built_artifact(resolved: ResolvedConfig) -> Artifact:
    """Return the engine; build it if it does not exist. Raises as `require_engine_of_server`."""
    from pipeline.tuning.planned_engine import planned_engine

    require_engine_of_server(resolved)
    with output.working("opening the engine") as note:
        return planned_engine(resolved, folders(), note=note).artifact


def check_url(url: str | None, allow_remote: bool, resolved: ResolvedConfig | None = None) -> None:
    """Raise UserError unless url is the address of a server that may be called. resolved: what it should serve, which
    is known of the server that `lookahead serve` started."""
    if url is None:
        return
    from pipeline.bench.contenders.remote import check_address

    check_address(url, allow_remote)
    state = None if resolved is None or allow_remote else running_server()
    if state is None or resolved is None or url.rpartition(":")[2] != state.grpc_url.rpartition(":")[2]:
        return
    if (state.model, state.profile) != (resolved.model.name, resolved.profile.name):
        raise UserError(
            f"The server on {url} serves {state.model} with profile {state.profile}; name these with --model and "
            "--profile."
        )


def require_engine_of_server(resolved: ResolvedConfig) -> None:
    """Raise UserError if the running server serves this model and profile with an engine of other settings. A build
    would replace that engine on the disk, and the server could not start again after a crash."""
    from pipeline.config.loading import RESOLVED
    from pipeline.config.resolution import load_resolved
    from pipeline.engine.backend import backend_of
    from pipeline.engine.fingerprint import differences

    state = running_server()
    if state is None or (state.model, state.profile) != (resolved.model.name, resolved.profile.name):
        return
    try:
        served = load_resolved(Path(state.repository, RESOLVED))
    except ConfigError as error:
        raise UserError(
            f"The running server of {state.model} was started by another version of this program, so its engine cannot "
            "be compared. Stop it first: `lookahead stop`."
        ) from error
    theirs, ours = (backend_of(each.backend).fingerprint(each, "").entries() for each in (served, resolved))
    if found := list(differences(theirs, ours)):
        raise UserError(
            f"The running server of {state.model} has an engine with other settings: {'; '.join(found)}. Use the --set "
            "with which the server was started, or stop it first."
        )


def words(option: str, text: str, known: Collection[str] | None = None) -> list[str]:
    """Parse `a,b,c`. known: the words that the option takes, None for any. Raises UserError for another word, if there
    is no word, or one twice."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UserError(f"{option} is empty; give a value, or several separated by commas.")
    _refuse_repeated(option, text, found)
    if known is not None and (wrong := [word for word in found if word not in known]):
        raise UserError(f"{option} takes {', '.join(known)}; found {_short(wrong[0])!r}.")
    return found


def numbers(option: str, text: str, most: int) -> list[int]:
    """Parse `1,2,4`, or `1e5,2.5e6`. Raises UserError for anything but different whole numbers from 1 to `most`."""
    found = [_number(word) for word in words(option, text)]
    if not all(1 <= number <= most for number in found):
        raise UserError(f"{option} takes numbers from 1 to {most}, separated by commas; found {_short(text)!r}.")
    _refuse_repeated(option, text, found)
    return found


def _refuse_repeated(option: str, text: str, found: Collection[object]) -> None:
    if len(set(found)) != len(found):
        raise UserError(f"{option} lists an item twice: {_short(text)!r}.")


def _number(word: str) -> int:
    """Return 0 if the word is not a whole number."""
    # Check the length first: Python refuses to convert thousands of digits.
    if len(word) > 20 or not re.fullmatch(r"\d+|\d+(\.\d+)?e\d+", word):
        return 0
    if word.isdecimal():
        return int(word)
    number = float(word)
    return int(number) if number.is_integer() else 0


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

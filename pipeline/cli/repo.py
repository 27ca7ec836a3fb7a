"""The command `repo`, which writes model repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model, Profile, Set, resolve
from pipeline.config.places import places
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig


def register(app: typer.Typer) -> None:
    app.command()(repo)


def repo(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    out: Annotated[str | None, typer.Option("--out", help="Output folder; default: beside the engine.")] = None,
    llmapi: Annotated[
        str | None,
        typer.Option(
            "--llmapi",
            metavar="DRAFTS",
            help="Write a repository for TensorRT-LLM's LLM API, without an engine. Draft source: auto "
            "(suffix_automaton if the release has it, else trie), suffix_automaton, trie, ngram or none.",
        ),
    ] = None,
    decoupled: Annotated[
        bool, typer.Option("--decoupled", help="With --llmapi: a model that can stream, and cannot serve `infer`.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the Triton model repository; build the engine first if needed."""
    from pipeline.repository.render import check_repository, require_replaceable
    from pipeline.server.startup import prepare

    resolved = resolve(model, profile, overrides)
    target = None if out is None else Path(out).resolve()
    if target is not None:
        require_replaceable(target)
    if llmapi is not None:
        folder, models = _write_llmapi(resolved, llmapi, target, decoupled)
    elif decoupled:
        raise ConfigError("--decoupled needs --llmapi. Other repositories have models with and without streaming.")
    else:
        with output.working("building the engine and the repository") as note:
            folder = prepare(resolved, places(), target, note).repository
        models = tuple(check_repository(folder))
    if as_json:
        output.print_json({"folder": str(folder), "models": list(models)})
    else:
        output.say(str(folder))


def _write_llmapi(
    resolved: ResolvedConfig, method: str, out: Path | None, decoupled: bool
) -> tuple[Path, tuple[str, ...]]:
    """Write a repository for the LLM API; return its folder and models."""
    from pipeline.llmapi.repository import MODEL, render_llmapi
    from pipeline.llmapi.settings import method_named

    where = places()
    target = out or where.engines / resolved.model.name / f"llmapi-{resolved.profile.name}"
    output.note("checked against the documented contract only; not run with TensorRT-LLM")
    return render_llmapi(resolved, method_named(method), target, where.home / "triton_repo", decoupled), (MODEL,)

"""Validates the product on this machine by running its commands one after the other, each with a log.

After a failed stage, stages that need its result are skipped and the others run. The run has its own engines folder and
ports, so it does not affect the user's engines and server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.config.folders import Folders
from pipeline.config.schema import ServerConfig
from pipeline.engine.backend import Note
from pipeline.files import log_tail
from pipeline.server.guard import OWNER

Outcome = Literal["passed", "failed", "skipped"]

TAIL_LINES = 30
FREE_PORTS = tuple(f"server.{name}=0" for name in ServerConfig.model_fields if name.endswith("_port"))
# File of the bench's results, in the folder of a validation.
BENCH_JSON = "bench.json"
PROMPT = "Write a function that adds two numbers, and one that adds three."
# Placeholder in a stage's arguments for the address of the server that stage "serve" has started.
SERVER = "{server}"


@dataclass(frozen=True, slots=True)
class ValidationStage:
    """One command of a validation. arguments: of the `lookahead` command. needs: stages that must have passed. always:
    run also at the end of an interrupted run."""

    name: str
    purpose: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    always: bool = False


@dataclass(frozen=True, slots=True)
class StageResult:
    """Outcome of a stage. reason: of a skipped or failed stage. log: file with the whole output. tail: its last lines
    after a failure."""

    name: str
    purpose: str
    command: str
    outcome: Outcome
    seconds: float = 0.0
    exit_code: int | None = None
    reason: str = ""
    log: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """Plan of a validation. other_profile: profile to switch to. overrides: settings of both profiles, besides backend
    and ports. first_only: further settings of the first profile. num_prompts, max_new_tokens: size of verify and bench.
    load_seconds: duration of the load."""

    model: str
    profile: str
    other_profile: str
    backend: str
    overrides: tuple[str, ...]
    first_only: tuple[str, ...]
    strategies: tuple[str, ...]
    num_prompts: int
    max_new_tokens: int
    load_seconds: float
    stage_timeout_s: float

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"backend={self.backend}", *FREE_PORTS, *self.first_only, *self.overrides)


def stages_of(plan: ValidationPlan, out_dir: Path) -> tuple[ValidationStage, ...]:
    """The stages of a validation, in order. out_dir: folder of the bench's results."""
    which = ("--model", plan.model, "--profile", plan.profile, *_set(plan.settings))
    strategies = ",".join(plan.strategies)
    amount = ("--limit", str(plan.num_prompts), "--max-new-tokens", str(plan.max_new_tokens))
    one_prompt = ("generate", PROMPT, "--max-tokens", "32", "--json")
    verify = ("verify", *which, "--url", SERVER, "--strategies", strategies, "--reference", *amount)
    load = ("load", "--concurrency", "8", "--duration", f"{plan.load_seconds:g}", "--json")
    switch = ("switch", "--profile", plan.other_profile, *_set(plan.overrides))
    bench = ("bench", *which, "--url", SERVER, "--strategies", strategies, *amount)
    return (
        ValidationStage("doctor", "findings about this machine", ("doctor", *which)),
        ValidationStage("plan", "every call of the build, without running it", ("engine", *which, "--dry-run")),
        ValidationStage("engine", "build of the engine", ("engine", *which), ("plan",)),
        ValidationStage("serve", "start of the server", ("serve", *which, "--background"), ("engine",)),
        ValidationStage("generate", "one prompt", one_prompt, ("serve",)),
        ValidationStage(
            "verify", "identical tokens under every strategy, and those of transformers", verify, ("serve",)
        ),
        ValidationStage("bench", "speed of each strategy", (*bench, "--json", str(out_dir / BENCH_JSON)), ("serve",)),
        ValidationStage("load", "eight clients at once", load, ("serve",)),
        ValidationStage("switch", f"profile {plan.other_profile} on the running server", switch, ("serve",)),
        ValidationStage("again", "one prompt under the other profile", one_prompt, ("switch",)),
        ValidationStage("status", "the server still runs", ("status",), ("serve",)),
        ValidationStage("stop", "end of the server and its processes", ("stop",), ("serve",), always=True),
    )


def run_stages(
    stages: Sequence[ValidationStage],
    out_dir: Path,
    environment: Mapping[str, str],
    server_address: Callable[[], str | None],
    timeout_s: float,
    note: Note = lambda text: None,
    on_result: Callable[[list[StageResult]], None] = lambda results: None,
) -> list[StageResult]:
    """Run stages one after the other, with logs in out_dir. server_address: returns the address of the running server,
    if there is one. timeout_s: limit of a stage. on_result: called after each stage with the results of all stages, of
    which those to come are "skipped"."""
    out_dir.mkdir(parents=True, exist_ok=True)
    results: list[StageResult] = []
    outcome: dict[str, Outcome] = {}
    try:
        for number, stage in enumerate(stages, 1):
            note(f"{number}/{len(stages)} {stage.name}: {stage.purpose}")
            missing = [name for name in stage.needs if outcome.get(name) != "passed"]
            address = server_address() if SERVER in stage.arguments else ""
            arguments = tuple(address or "" if word == SERVER else word for word in stage.arguments)
            if missing:
                result = _result(stage, arguments, "skipped", reason=f"needs {', '.join(missing)}")
            elif address is None:
                result = _result(stage, arguments, "failed", reason="the server is gone")
            else:
                log = out_dir / f"{number:02d}-{stage.name}.log"
                result = _run(stage, arguments, log, environment, timeout_s)
            note(f"  {result.outcome}{f' ({result.reason})' if result.reason else ''} after {result.seconds:.1f} s")
            outcome[stage.name] = result.outcome
            results.append(result)
            not_run = [_result(each, each.arguments, "skipped", reason="not run") for each in stages[number:]]
            on_result([*results, *not_run])
    finally:
        for stage in stages[len(results) :]:
            if stage.always:
                _run(stage, stage.arguments, out_dir / f"end-{stage.name}.log", environment, timeout_s)
    return results


def private_folders(folders: Folders, out_dir: Path) -> tuple[Folders, dict[str, str]]:
    """Folders with an engines folder inside out_dir, and the environment variables that set them for a command."""
    own = Folders(folders.home, out_dir / "engines", folders.cache)
    variables = {"LOOKAHEAD_HOME": own.home, "LOOKAHEAD_ENGINES": own.engines, "LOOKAHEAD_CACHE": own.cache}
    # With OWNER, a server of this run ends with this process, even if it is killed.
    return own, {**os.environ, **{name: str(path) for name, path in variables.items()}, OWNER: str(os.getpid())}


def has_passed(results: Sequence[StageResult]) -> bool:
    """Whether all stages have passed; a skipped stage has not."""
    return all(result.outcome == "passed" for result in results)


def _result(stage: ValidationStage, arguments: Sequence[str], outcome: Outcome, **more: Any) -> StageResult:
    return StageResult(stage.name, stage.purpose, f"lookahead {' '.join(arguments)}", outcome, **more)


def _run(
    stage: ValidationStage, arguments: Sequence[str], log: Path, environment: Mapping[str, str], timeout_s: float
) -> StageResult:
    started = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        reason, code = "", None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            reason = f"not done after {timeout_s:.0f} s"
        finally:
            if code is None:
                _end(process)
    found = {"seconds": time.monotonic() - started, "exit_code": code, "log": str(log)}
    if code == 0:
        return _result(stage, arguments, "passed", **found)
    tail = log_tail(log, TAIL_LINES)
    return _result(stage, arguments, "failed", **found, reason=reason or f"exit code {code}", tail=tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that took too long or was interrupted, with its child processes."""
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def _set(settings: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("--set", setting))

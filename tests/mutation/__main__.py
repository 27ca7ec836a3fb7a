"""`python -m tests.mutation`: mutation testing of the core. Reports the mutants that no test detects.

A mutant runs in a fork of this process, which has imported the libraries but no module of `pipeline`. The fork imports
the mutant in place of the original module, runs the module's tests without numba's compiler, and stops at the first
failure. No file is changed. docs/decisions/050 has the reason for a runner of our own.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

os.environ["NUMBA_DISABLE_JIT"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Imported here for all forks.
import httpx  # noqa: F401
import hypothesis
import llguidance  # noqa: F401
import numba  # noqa: F401
import pydantic.main  # noqa: F401
import pytest
import rich.progress  # noqa: F401
import torch  # noqa: F401
import typer  # noqa: F401
import xdist.plugin  # noqa: F401

from tests.mutation.mutants import Mutant
from tests.mutation.targets import TARGETS, Target, candidates_of

# Limit of a mutant's processor time, relative to the unchanged module: a mutant beyond it counts as detected. The limit
# of wall time is `_WALL_TIME_FACTOR` times that limit, which machine load does not reach.
_CPU_TIME_FACTOR, _GRACE_S = 4.0, 10.0
_WALL_TIME_FACTOR = 20.0


class Outcome(NamedTuple):
    module: str
    name: str
    result: str  # killed, timeout or survived


class _MutatedModule(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Import hook for the changed module. Python imports all other modules as usual."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        super().__init__(module.removesuffix(".py").replace("/", "."), str(Path(module).resolve()))
        self._tree = tree

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> object:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def get_code(self, fullname: str) -> object:
        return compile(self._tree, self.path, "exec")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description="Mutation score of the core.")
    parser.add_argument("--mutants", type=int, default=200, help="Size of the sample.")
    parser.add_argument("--seed", type=int, default=1, help="Sampling seed.")
    parser.add_argument("--part", default="1/1", help="K/N for the K-th of N parts of the sample.")
    parser.add_argument("--only", default="", help="Text that the paths of the modules must contain.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="Number of parallel mutants.")
    parser.add_argument("--json", type=Path, help="Output file in JSON Lines, appended to.")
    options = parser.parse_args(arguments)
    targets = [target for target in TARGETS if options.only in target.module]
    chosen = _sample(targets, options.mutants, options.seed)
    part, parts = map(int, options.part.split("/"))
    chosen = sorted(chosen, key=lambda entry: entry[0].module)
    chosen = chosen[len(chosen) * (part - 1) // parts : len(chosen) * part // parts]
    limits = {target: _limit(target) for target in dict.fromkeys(target for target, _ in chosen)}
    outcomes = []
    for outcome in _run_all(chosen, limits, options.jobs):
        outcomes.append(outcome)
        if outcome.result == "survived":
            print(f"survived: {outcome.module}: {outcome.name}", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(outcome._asdict()) + "\n")
    _report(outcomes)
    return 0


def _sample(targets: Iterable[Target], size: int, seed: int) -> list[tuple[Target, Mutant]]:
    """Mutants sampled from all targets."""
    everything = [(target, mutant) for target in targets for mutant in candidates_of(target)]
    chosen = random.Random(seed).sample(everything, min(size, len(everything)))
    print(f"{len(chosen)} of {len(everything)} mutants", flush=True)
    return chosen


def _limit(target: Target) -> float:
    """Limit of a mutant's processor time in seconds. Raises SystemExit if the unchanged module fails its tests."""
    _, status, used = os.wait4(_fork(target, None), 0)
    if status:
        raise SystemExit(f"{target.module}: the tests fail without a mutation")
    seconds = used.ru_utime + used.ru_stime
    print(f"{target.module}: tests take {seconds:.1f} s of processor time", flush=True)
    return _CPU_TIME_FACTOR * seconds + _GRACE_S


def _run_all(chosen: list[tuple[Target, Mutant]], limits: dict[Target, float], num_jobs: int) -> Iterable[Outcome]:
    todo = list(reversed(chosen))
    running: dict[int, tuple[Target, Mutant, float]] = {}
    while todo or running:
        while todo and len(running) < num_jobs:
            target, mutant = todo.pop()
            deadline = time.monotonic() + _WALL_TIME_FACTOR * limits[target]
            running[_fork(target, mutant, limits[target])] = (target, mutant, deadline)
        time.sleep(0.02)
        for pid, (target, mutant, deadline) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            is_late = time.monotonic() > deadline
            if not ended and not is_late:
                continue
            if not ended:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            del running[pid]
            out_of_time = not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
            result = "timeout" if out_of_time else "survived" if status == 0 else "killed"
            yield Outcome(target.module, mutant.name, result)


def _fork(target: Target, mutant: Mutant | None, limit: float | None = None) -> int:
    """Start a process that runs a target's tests, with status 0 if all pass. Returns its pid. limit: seconds of
    processor time."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(limit), ceil(limit) + 5))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        if mutant is not None:
            tree = mutant.tree(ast.parse(Path(target.module).read_text(encoding="utf-8")))
            sys.meta_path.insert(0, _MutatedModule(target.module, tree))
        # Without the phase that shrinks failing examples.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutation", deadline=None, derandomize=True, database=None, phases=phases, max_examples=40
        )
        with tempfile.TemporaryDirectory() as folder:
            options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutation", f"--basetemp={folder}/t"]
            status = int(pytest.main([*options, *target.tests]))
    finally:
        os._exit(status)


def _report(outcomes: list[Outcome]) -> None:
    print("| module | mutants | detected |\n| --- | --- | --- |")
    for module in dict.fromkeys(target.module for target in TARGETS):
        results = [outcome.result for outcome in outcomes if outcome.module == module]
        if results:
            print(f"| `{module}` | {len(results)} | {sum(result != 'survived' for result in results)} |")
    detected = sum(outcome.result != "survived" for outcome in outcomes)
    print(f"| all | {len(outcomes)} | {detected} ({100 * detected / max(1, len(outcomes)):.1f} %) |")


if __name__ == "__main__":
    sys.exit(main())

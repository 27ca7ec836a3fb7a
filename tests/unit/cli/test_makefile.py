"""Each make target has a description and calls an existing command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from pipeline.cli.app import PANELS
from pipeline.config.folders import folders
from tests.patience import PATIENCE_S

HOME = folders({}).home
TEXT = (HOME / "Makefile").read_text(encoding="utf-8")
VERBS = {verb for verbs in PANELS.values() for verb in verbs}


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"\$\(LOOKAHEAD\) ([\w-]+)", TEXT))))
def test_each_target_calls_a_verb_that_exists(verb: str) -> None:
    assert verb in VERBS


def test_each_target_is_explained() -> None:
    targets = set(re.findall(r"^([a-z-]+):", TEXT, flags=re.MULTILINE))
    explained = set(re.findall(r"^([a-z-]+):.*## .+", TEXT, flags=re.MULTILINE))
    assert targets == explained
    phony = re.search(r"\.PHONY:((?:.*\\\n)*.*)", TEXT)
    assert phony is not None
    assert set(phony[1].replace("\\", " ").split()) == targets


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_bare_make_lists_the_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0
    for target in ("demo", "engine", "serve", "test", "check"):
        assert f"make {target}" in done.stdout


def test_constraints_pin_every_declared_dependency() -> None:
    pinned = set(
        re.findall(r"^([a-z0-9-]+)==", (HOME / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    project = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    declared = {name.lower() for name in re.findall(r'^\s+"([A-Za-z0-9-]+)', block, flags=re.MULTILINE)}
    assert declared - pinned == set()
    assert "torch" in declared


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["clean"], "clean"),
        (["clean", "MODEL=llama2-7b"], 'clean --model "llama2-7b"'),
        (["engine", "MODEL=/a b/c"], 'engine --model "/a b/c" --profile "latency"'),
    ],
)
def test_what_is_called(words: list[str], called: str) -> None:
    # The tests may run below `make test`, whose variables and flags are not meant here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-n", *words], cwd=HOME, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.splitlines()[-1].split("/bin/lookahead ")[1].strip() == called

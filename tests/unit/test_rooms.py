"""Arrows never point back: each room imports only rooms that lie before it on the road."""

import ast
from pathlib import Path

import pytest

import pipeline

PACKAGE = Path(pipeline.__file__).parent
# What any room may import, and each room with those it may import besides; `config.schema` is plain values that every
# room may name.
ANYWHERE = {"errors", "files"}
BUILD = {"config", "checkpoint", "decoding", "engine"}
SERVE = BUILD | {"tuning", "repository", "triton_models", "server"}
BEFORE: dict[str, set[str]] = {
    "config": set(),
    "checkpoint": {"config"},
    "decoding": set(),
    "engine": {"config", "checkpoint", "decoding"},
    "tuning": {"config", "decoding", "engine"},
    "repository": BUILD,
    "triton_models": BUILD | {"repository"},
    "server": SERVE,
    "llmapi": BUILD | {"repository", "triton_models"},
    "bench": SERVE,
    "dynamo": SERVE,
    "cli": SERVE | {"llmapi", "bench", "dynamo"},
}


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module for module in modules if module.startswith("pipeline.")}


@pytest.mark.parametrize("room", [*sorted(ANYWHERE), *BEFORE])
def test_a_room_imports_only_what_lies_before_it(room: str) -> None:
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").exists() else list((PACKAGE / room).rglob("*.py"))
    assert files
    allowed = BEFORE.get(room, set()) | ANYWHERE | {room}
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in files
        for module in imported_modules(path)
        if module.split(".")[1] not in allowed and module != "pipeline.config.schema"
    }
    assert not wrong


def test_every_room_is_on_the_road() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert rooms <= BEFORE.keys()


@pytest.mark.parametrize("room", ["decoding", "config"])
def test_algorithms_and_settings_know_no_torch(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        names = {
            name.split(".")[0]
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        assert not names & {"torch", "transformers", "tritonclient"}, path

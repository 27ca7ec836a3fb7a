"""Arrows never point back: each room imports only rooms before it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline
from tests.import_statements import imports_of, tree_of

PACKAGE = Path(pipeline.__file__).parent
# What any room may import, and each room with those it may import besides; `config.schema` is plain values that every
# room may name.
ANYWHERE = {"cache_folder", "errors", "files", "heap", "json_lines", "markdown", "request_ids", "triton_grpc"}
BUILD = {"config", "checkpoint", "decoding", "engine"}
SERVE = BUILD | {"tuning", "repository", "triton_models", "gateway", "server"}
BEFORE: dict[str, set[str]] = {
    "config": set(),
    "checkpoint": {"config"},
    "decoding": set(),
    "engine": {"config", "checkpoint", "decoding"},
    "tuning": {"config", "decoding", "engine"},
    "repository": BUILD,
    "triton_models": BUILD | {"repository"},
    "gateway": {"config"},
    "server": SERVE,
    # The rooms below find a backend by its name (`config.registry`), never by an import.
    "backends": SERVE,
    "llmapi": BUILD | {"repository", "triton_models", "backends"},
    "bench": SERVE,
    "dynamo": SERVE,
    "cli": SERVE | {"backends", "llmapi", "bench", "dynamo"},
}


def imported_modules(path: Path) -> set[str]:
    return {module for found in imports_of(path) for module in found.modules if module.startswith("pipeline.")}


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


def test_every_room_has_its_permitted_imports() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert rooms <= BEFORE.keys()


@pytest.mark.parametrize("room", ["decoding", "config"])
def test_algorithms_and_settings_know_no_torch(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        names = {module.split(".")[0] for found in imports_of(path) if found.at_start for module in found.modules}
        assert not names & {"torch", "transformers", "tritonclient"}, path


# A backend's own places: its folder, its line in the registry, and the section of the profile with its settings.
OWN = (
    "backends/tensorrt_llm/",
    "config/registry.py",
    "config/schema/tensorrt_llm.py",
    "config/schema/profile.py",
    "llmapi/",
)
BACKEND_NAMES = {"torch", "tensorrt_llm"}
_SETTING = re.compile(r"\btensorrt_llm\.[a-z]")


def mentions_of_a_backend(tree: ast.AST) -> Iterator[str]:
    """Comparisons with a backend's name, accesses to the settings of TensorRT-LLM, imports from a backend's folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = {part.value for part in [node.left, *node.comparators] if isinstance(part, ast.Constant)}
            if words & BACKEND_NAMES:
                yield f"line {node.lineno} compares with {words & BACKEND_NAMES}"
        elif isinstance(node, ast.Attribute) and node.attr == "tensorrt_llm":
            yield f"line {node.lineno} reads the settings of a backend"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline.backends."):
            yield f"line {node.lineno} imports {node.module}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _SETTING.search(node.value):
            yield f"line {node.lineno} names a setting of a backend: {node.value[:60]!r}"


def test_only_the_folder_of_a_backend_mentions_it() -> None:
    names = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]
    found = [
        f"{name}: {text}"
        for name in names
        if not name.startswith(OWN)
        for text in mentions_of_a_backend(tree_of(PACKAGE / name))
        if not (name.startswith("backends/") and "imports pipeline.backends." in text)
    ]
    assert not found


def test_the_check_of_mentions_finds_each_kind() -> None:
    text = """
if resolved.backend == "tensorrt_llm": pass
resolved.profile.tensorrt_llm.speculation
from pipeline.backends.tensorrt_llm.build_context import Case
x = "use tensorrt_llm.speculation"
"""
    assert len(list(mentions_of_a_backend(ast.parse(text)))) == 4


@pytest.mark.parametrize("room", ["engine", "triton_models", "gateway", "dynamo"])
def test_the_map_of_a_room_names_all_its_modules(room: str) -> None:
    map_of_room = ast.get_docstring(tree_of(PACKAGE / room / "__init__.py")) or ""
    modules = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__", "__main__"}
    assert not modules - set(re.findall(r"\w+", map_of_room))

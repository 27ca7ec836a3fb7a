"""What the code imports is declared, with bounds: in pyproject.toml for all of it, in docker/requirements.txt for the
models that our image serves beside TensorRT-LLM's."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import pipeline
from tests.import_statements import imports_of

HOME = Path(pipeline.__file__).parent.parent
# What Triton and TensorRT-LLM bring themselves, where they run our code.
OF_THE_SERVER = {"triton_python_backend_utils", "tensorrt_llm"}
# What torch brings where it is built for CUDA, and nothing else imports.
OF_CUDA = {"triton"}
# Nobody imports these: transformers needs the first two to read GGUF files and tokenizers, and the last is a server in
# a wheel.
NOT_IMPORTED = {"accelerate", "sentencepiece", "nvidia-pytriton"}
SERVED_IN_THE_IMAGE = ("lookahead_bls", "text_conversion", "single_response", "llmapi/tensorrt_llm")


def imported(paths: Iterable[Path], in_functions: bool = True) -> set[str]:
    """Modules that files import at run time: top level names of others' code."""
    found = [each for path in paths for each in imports_of(path) if not each.for_types]
    names = {name.split(".")[0] for each in found if in_functions or each.at_start for name in each.modules}
    return names - sys.stdlib_module_names - OF_THE_SERVER - OF_CUDA - {"pipeline"}


@functools.cache
def installed() -> dict[str, tuple[str, str]]:
    """Version and supported Pythons of each installed distribution."""
    return {
        distribution.metadata["Name"].lower().replace("_", "-"): (
            distribution.version,
            distribution.metadata.get("Requires-Python", ""),
        )
        for distribution in importlib.metadata.distributions()
    }


@functools.cache
def distributions() -> dict[str, set[str]]:
    """Distributions by the modules that their files make up; several share a namespace such as google.
    (`packages_distributions` of Python 3.10 knows only those that list their modules.)"""
    found: dict[str, set[str]] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        # The names alone: a path object for each file of all packages takes many seconds.
        for line in (distribution.read_text("RECORD") or "").splitlines():
            found.setdefault(line.split(",")[0].split("/")[0].split(".")[0], set()).add(name)
    return found


# Of an extra that is not installed where the tests run, so that its files cannot be asked.
NOT_INSTALLED = {"llama_cpp": {"llama-cpp-python"}}


def providers(module: str) -> set[str]:
    return distributions().get(module) or NOT_INSTALLED[module]


def declared_lines() -> list[str]:
    text = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    return text.split("\ndependencies = [\n", 1)[1].split("\n]\n", 1)[0].splitlines()


def declared() -> dict[str, Requirement]:
    found = [Requirement(line.split('"')[1]) for line in declared_lines()]
    return {requirement.name.lower(): requirement for requirement in found}


def extra(name: str) -> set[str]:
    """Distributions of an extra that the package imports where it is installed."""
    text = (HOME / "pyproject.toml").read_text(encoding="utf-8").split(f"\n{name} = [", 1)[1].split("]\n", 1)[0]
    return {Requirement(found).name.lower() for found in re.findall(r'"([^"]+)"', text)}


def image_requirements() -> dict[str, Requirement]:
    lines = (HOME / "docker" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line.split("#")[0]) for line in lines if not line.startswith("#")]
    return {requirement.name.lower(): requirement for requirement in found}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    modules = imported([*(HOME / "pipeline").rglob("*.py"), *(HOME / "triton_repo").rglob("*.py")])
    names = set(declared())
    optional = extra("dynamo") | extra("llama-cpp")
    assert {module for module in modules if not providers(module) & (names | optional)} == set()
    assert names - set().union(*(providers(module) for module in modules)) == NOT_IMPORTED


def test_each_dependency_has_both_bounds_and_a_reason() -> None:
    for line in declared_lines():
        operators = {specifier.operator for specifier in Requirement(line.split('"')[1]).specifier}
        assert operators in ({">=", "<"}, {"=="}), line
        assert re.search(r'",\s+# \S', line), line


def test_the_image_gets_all_that_the_served_models_import() -> None:
    """Found by importing what the models import, in a process that has no torch, as those that serve them. Of their
    backend they call functions without further imports."""
    files = [HOME / "triton_repo" / name / "1" / "model.py" for name in SERVED_IN_THE_IMAGE]
    imports = "\n".join(
        ast.unparse(node)
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline.")
    )
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from pipeline.engine.backend import backend_of\n"
        "def show():\n"
        "    print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('pipeline')))\n"
        f"{imports}\nshow()\nbackend_of('tensorrt_llm')\nshow()\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOME)
    own, all_loaded = (map(Path, line.split()) for line in loaded.stdout.splitlines())
    modules = (imported([*files, *own]) | imported(all_loaded, in_functions=False)) - {"torch"}
    wanted = image_requirements()
    assert {module for module in modules if not providers(module) & wanted.keys()} == set()
    # Chat templates take jinja2, which transformers imports when it meets one.
    assert wanted.keys() - set().union(*(providers(module) for module in modules)) == {"jinja2"}


@pytest.mark.parametrize("python", ["3.10.12", "3.11.2", "3.12.3"])  # of Ubuntu 22.04, Debian 12, Ubuntu 24.04
def test_each_pinned_version_that_is_installed_here_has_a_release_for_this_python(python: str) -> None:
    """pip cannot install a pin without one: it needs a marker, so that pip takes the newest version of the range."""
    lines = (HOME / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    needed = {
        pin.name: installed()[pin.name.lower()][1]
        for pin in pins
        if (pin.marker is None or pin.marker.evaluate(here))
        and pin.name.lower() in installed()
        and installed()[pin.name.lower()][0] in pin.specifier
    }
    assert len(needed) > 80
    assert {name: versions for name, versions in needed.items() if python not in SpecifierSet(versions)} == {}


def test_the_image_is_tested_with_what_it_takes() -> None:
    for requirement in image_requirements().values():
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name)), requirement
        # The container's own are kept.
        assert {specifier.operator for specifier in requirement.specifier} == {">="}, requirement


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the user's setting of pip."""
    hosts = [".".join(name) for name in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"))]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, capture_output=True, text=True, check=True).stdout
    texts = {name: (HOME / name).read_bytes().decode(errors="ignore") for name in tracked.split("\0")[:-1]}
    assert [name for name, text in texts.items() if any(host in text for host in hosts)] == []

"""Machine code of loops is reused for the same sources, and never for others."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.decoding import compile_cache
from pipeline.decoding.compile_cache import COMPLETE, PACKAGE, find_cache, loop_sources, state_of

# Each line read starts a process that imports the package anew, but not numba.
SMALL_LOOP = """
import os, sys
import numba
for _ in sys.stdin:
    if not os.fork():
        from pipeline.decoding.drafting.mixing import logit
        stats = logit.stats
        print(round(logit(0.25), 3), sum(stats.cache_misses.values()), sum(stats.cache_hits.values()), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__")))


def test_a_changed_loop_is_compiled_anew_and_an_unchanged_one_is_not(package: Path, tmp_path: Path):
    cache, path = tmp_path / "cache", package / "decoding" / "drafting" / "mixing.py"
    path.write_text(f"{path.read_text()}# {tmp_path}\n")  # of the package as it is the environment may hold everything
    environment = os.environ | {"PYTHONPATH": str(package.parent), compile_cache.VARIABLE: str(cache)}
    with subprocess.Popen(
        [sys.executable, "-c", SMALL_LOOP],
        cwd=package.parent,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as loop:

        def ask() -> list[str]:
            print(file=loop.stdin, flush=True)
            return loop.stdout.readline().split()  # type: ignore[union-attr]

        assert ask() == ["-1.099", "1", "0"]
        assert ask() == ["-1.099", "0", "1"]
        stamp = path.stat()
        path.write_text(path.read_text().replace("np.log(clipped", "2 * np.log(clipped"))
        # The time stamp says nothing: files of a wheel, and of a container, may all have one.
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert ask() == ["-2.197", "1", "0"]


def test_what_loops_import_counts_and_what_holds_none_does_not(package: Path):
    before = state_of(package, {})
    names = {path.relative_to(package).as_posix() for path in loop_sources(package)}
    assert {"decoding/trie/nodes.py", "decoding/compiled.py", "decoding/tree.py", "engine/torch/lean/rows.py"} <= names
    assert not names & {"decoding/trie/snapshot.py", "decoding/session.py", "decoding/compile_cache.py", "files.py"}
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix() not in names:
            path.write_text(path.read_text() + "# changed")
    assert state_of(package, {}) == before
    tree = package / "decoding" / "tree.py"
    tree.write_text(tree.read_text() + "# changed")
    assert state_of(package, {}) != before


def test_the_imports_of_loops_are_those_of_their_syntax_trees():
    for path in loop_sources():
        nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
        modules = {node.module for node in nodes} | {f"{node.module}.{a.name}" for node in nodes for a in node.names}
        files = {PACKAGE.parent.joinpath(*str(module).split(".")) for module in modules}
        expected = {f for file in files for f in (file.with_suffix(".py"), file / "__init__.py") if f.is_file()}
        assert set(compile_cache._imported(path, PACKAGE)) == expected


def test_settings_of_numba_have_machine_code_of_their_own():
    assert state_of(PACKAGE, {"NUMBA_BOUNDSCHECK": "1"}) != state_of(PACKAGE, {})
    assert state_of(PACKAGE, {"OTHER": "1"}) == state_of(PACKAGE, {})


def test_the_folder_lies_beside_the_environment_or_where_all_of_it_is(tmp_path: Path):
    name = state_of(PACKAGE, {})
    environment = {"LOOKAHEAD_CACHE": str(tmp_path / "cache")}
    prefix = tmp_path / "venv"
    assert find_cache(PACKAGE, environment, prefix, True) == prefix / "lookahead-kernels" / name
    assert find_cache(PACKAGE, environment, prefix, False) == tmp_path / "cache" / "kernels" / name
    shipped = tmp_path / "image" / name
    shipped.mkdir(parents=True)
    (shipped / COMPLETE).touch()
    named = environment | {compile_cache.VARIABLE: str(tmp_path / "image")}
    assert find_cache(PACKAGE, named, prefix, True) == shipped

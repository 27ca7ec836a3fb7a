"""Where the machine code of compiled loops is kept, and whether it is there.

A folder for each state of what goes into it: the sources of the loops and of all that they import, Python's and numba's
versions, the processor, numba's settings. So it is never stale, and a folder that is marked complete needs no compiler.
It lies beside the environment, or in the cache folder where that cannot be written.

    python -m pipeline.decoding.compile_cache      compiles what is missing, with progress
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.files import cache_folder

PACKAGE = Path(__file__).parents[1]
# Names a folder to look into first, and to write to where it can be written.
VARIABLE = "LOOKAHEAD_KERNELS"
COMPLETE = "complete"
# Folders of the package whose modules may hold compiled loops.
LOOP_FOLDERS = ("decoding", "engine/torch/lean")
KEEPER = Path(__file__).name
COMPILING = "compiling the drafting loops for this processor, once"
_HOLDS_LOOPS = re.compile(r"^@(compiled|kernel|subkernel|inlined)$", re.MULTILINE)


def loop_sources(package: Path = PACKAGE) -> list[Path]:
    """The modules that hold compiled loops, and those of ours that they import."""
    found = [
        path
        for folder in LOOP_FOLDERS
        for path in sorted((package / folder).rglob("*.py"))
        if _HOLDS_LOOPS.search(path.read_text())
    ]
    for path in found:  # grows meanwhile
        # Where machine code is kept changes none of it.
        found += [other for other in _imported(path, package) if other not in found and other.name != KEEPER]
    return sorted(found)


def _imported(path: Path, package: Path) -> list[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package.name:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = [package.parent.joinpath(*name.split(".")) for name in sorted(names)]
    candidates = [file for name in files for file in (name.with_suffix(".py"), name / "__init__.py")]
    return [file for file in candidates if file.is_file()]


def state_of(package: Path, environment: Mapping[str, str]) -> str:
    """Names what machine code of a package's loops is good for."""
    digest = hashlib.sha256()
    for path in loop_sources(package):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    settings = sorted(
        item for item in environment.items() if item[0].startswith("NUMBA_") and item[0] != "NUMBA_CACHE_DIR"
    )
    digest.update(repr((sys.version, version("numba"), version("llvmlite"), _processor(), settings)).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What tells processors apart that understand different instructions."""
    try:
        facts = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        facts = platform.processor()
    return platform.machine() + "".join(re.findall(r"^(?:model name|flags|Features)\s*:.*$", facts, re.MULTILINE))


@functools.cache
def cache_path() -> Path:
    """The folder of this process."""
    return find_cache(PACKAGE, os.environ, Path(sys.prefix), sys.prefix != sys.base_prefix)


def find_cache(package: Path, environment: Mapping[str, str], prefix: Path, is_virtual: bool) -> Path:
    """The folder for a package's loops: of those that may hold it, the first that is complete, else the first that can
    be written. prefix: folder of the environment, which is `is_virtual` or the system's."""
    roots = [Path(environment[VARIABLE])] if environment.get(VARIABLE) else []
    roots += [prefix / "lookahead-kernels"] if is_virtual else []
    roots += [Path(cache_folder(environment)).expanduser() / "kernels"]
    name = state_of(package, environment)
    for root in roots:
        if (root / name / COMPLETE).exists():
            return root / name
    return next((root / name for root in roots if _can_be_written(root)), roots[-1] / name)


def _can_be_written(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def is_complete() -> bool:
    """Whether nothing is left to compile."""
    return (cache_path() / COMPLETE).exists()


def mark_complete() -> None:
    """To be called when every loop has been compiled."""
    cache_path().mkdir(parents=True, exist_ok=True)
    (cache_path() / COMPLETE).touch()


def ensure_compiled(note: Callable[[str], None]) -> None:
    """Compile what is missing. note: called with what is being done."""
    if is_complete():
        return
    note(COMPILING)
    from numba.core import event

    from pipeline.decoding.warm_up import warm_up

    class Counter(event.Listener):  # type: ignore[misc]
        num_done = 0

        def on_start(self, event: Any) -> None:
            pass

        def on_end(self, event: Any) -> None:
            self.num_done += 1
            note(f"{COMPILING}: {self.num_done} done")

    with event.install_listener("numba:compile", Counter()):
        warm_up()


def main() -> None:
    """Compile what is missing, and say how it goes."""
    on_terminal = sys.stderr.isatty()
    said = 0

    def note(text: str) -> None:
        nonlocal said
        said += 1
        if on_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif said == 1:
            print(text, file=sys.stderr, flush=True)

    ensure_compiled(note)
    if said:
        print(("\r\x1b[K" if on_terminal else "") + f"The drafting loops are in {cache_path()}.", file=sys.stderr)


if __name__ == "__main__":
    main()

"""The folder with the machine code of compiled loops.

The folder's name is a hash of everything that the machine code depends on: the sources of the loops and their imports,
the versions of Python and numba, the processor, numba's settings. So machine code is never stale. A folder marked
complete needs no compiler. The folder is in the virtual environment, or in the cache folder if that is read-only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pipeline.cache_folder import cache_folder
from pipeline.files import can_be_written

PACKAGE = Path(__file__).parents[1]
# Environment variable of the preferred folder.
VARIABLE = "LOOKAHEAD_KERNELS"
COMPLETE = "complete"
# Folders of the package whose modules may hold compiled loops.
LOOP_FOLDERS = ("decoding", "engine/torch/lean")
THIS_MODULE = Path(__file__).name
_HOLDS_LOOPS = re.compile(r"^@(compiled|kernel|subkernel|inlined)$", re.MULTILINE)


def loop_sources(package: Path = PACKAGE) -> list[Path]:
    """The modules of a package that hold compiled loops, and the modules of the package that they import."""
    found = [
        path
        for folder in LOOP_FOLDERS
        for path in sorted((package / folder).rglob("*.py"))
        if _HOLDS_LOOPS.search(path.read_text(encoding="utf-8"))
    ]
    for path in found:  # the list grows during the loop
        # This module only locates machine code and does not change it.
        found += [other for other in _imported(path, package) if other not in found and other.name != THIS_MODULE]
    return sorted(found)


def _imported(path: Path, package: Path) -> list[Path]:
    # The syntax tree takes eight times as long.
    imports = re.compile(rf"^[ \t]*from ({package.name}\b[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
    names: set[str] = set()
    for module, imported in imports.findall(path.read_text(encoding="utf-8")):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", imported))}
    files = [package.parent.joinpath(*name.split(".")) for name in sorted(names)]
    candidates = [file for name in files for file in (name.with_suffix(".py"), name / "__init__.py")]
    return [file for file in candidates if file.is_file()]


def state_of(package: Path, environment: Mapping[str, str]) -> str:
    """Hash (16 hex digits) of everything that the machine code of a package's loops depends on."""
    digest = hashlib.sha256()
    for path in loop_sources(package):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    settings = sorted(
        item for item in environment.items() if item[0].startswith("NUMBA_") and item[0] != "NUMBA_CACHE_DIR"
    )
    digest.update(repr((sys.version, version("numba"), version("llvmlite"), _processor(), settings)).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """The processor's model and instruction set."""
    try:
        processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        processor = platform.processor()
    return platform.machine() + "".join(re.findall(r"^(?:model name|flags|Features)\s*:.*$", processor, re.MULTILINE))


@functools.cache
def cache_path() -> Path:
    """The folder that this process uses."""
    return find_cache(PACKAGE, os.environ, Path(sys.prefix), sys.prefix != sys.base_prefix)


def find_cache(package: Path, environment: Mapping[str, str], prefix: Path, is_virtual: bool) -> Path:
    """The folder for a package's loops: of the candidates, the first complete one, else the first writable one. prefix:
    folder of the Python environment. is_virtual: whether that is a virtual environment."""
    roots = [Path(environment[VARIABLE])] if environment.get(VARIABLE) else []
    roots += [prefix / "lookahead-kernels"] if is_virtual else []
    roots += [Path(cache_folder(environment)).expanduser() / "kernels"]
    name = state_of(package, environment)
    for root in roots:
        if (root / name / COMPLETE).exists():
            return root / name
    return next((root / name for root in roots if can_be_written(root)), roots[-1] / name)


def is_complete() -> bool:
    """Whether the folder of this process holds all machine code."""
    return (cache_path() / COMPLETE).exists()


def mark_complete() -> None:
    """Mark the folder of this process complete, after every loop has been compiled."""
    cache_path().mkdir(parents=True, exist_ok=True)
    (cache_path() / COMPLETE).touch()

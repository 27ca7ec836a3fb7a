"""Finds a tritonserver on this machine and prepares it to run Python models with this interpreter.

A container has a matching server and Python backend. The `nvidia-pytriton` wheel has the same server and one backend
stub per Python version; the matching stub is copied beside the backend in a separate folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.folders import CODE, Folders, expanded
from pipeline.config.threads import NUM_THREADS, WAIT_POLICY, num_threads
from pipeline.decoding import compile_cache
from pipeline.errors import ServerError

CONTAINER_SERVER = Path("/opt/tritonserver/bin/tritonserver")
VARIABLE = "LOOKAHEAD_TRITONSERVER"
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver. origin: where it was found. wheel_dir: root of the wheel's server tree; None for a server that is
    not from the wheel."""

    executable: Path
    origin: str
    wheel_dir: Path | None = None


def find_installation(environment: Mapping[str, str] = os.environ, container: Path = CONTAINER_SERVER) -> Installation:
    """Find a tritonserver: first LOOKAHEAD_TRITONSERVER, then the container's path, PATH, the nvidia-pytriton wheel.

    Raises ServerError if there is none, or if the variable does not name an executable file.
    """
    wheel = _wheel_dir()
    if named := environment.get(VARIABLE):
        path = expanded(named)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ServerError(
                f"{VARIABLE} is {named}, which is not an executable file. Set it to a tritonserver, or unset it."
            )
        return _found(path, VARIABLE, wheel)
    if container.is_file():
        return Installation(container, "container")
    if on_path := shutil.which("tritonserver", path=environment.get("PATH")):
        return _found(Path(on_path), "PATH", wheel)
    if wheel is not None:
        return Installation(wheel / "bin" / "tritonserver", "nvidia-pytriton wheel", wheel)
    raise ServerError(
        f"No tritonserver was found ({VARIABLE}, {container}, PATH, nvidia-pytriton wheel). "
        "Run `pip install nvidia-pytriton==0.7.0` (x86-64 Linux, glibc 2.35 or newer), or use NVIDIA's Triton "
        "container."
    )


def backends_dir(executable: Path) -> Path:
    """Triton's default backend directory beside a tritonserver."""
    return executable.resolve().parents[1] / "backends"


def prepare_backends(installation: Installation, folder: Path) -> Path | None:
    """Create a backend directory in `folder` with the stub of this Python version, and return it. None if the server
    has a Python backend. Raises ServerError if the wheel has no stub for this Python.
    """
    wheel = installation.wheel_dir
    if wheel is None:
        return None
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub = wheel / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        have = ", ".join(sorted(path.name for path in (wheel / "python_backend_stubs").iterdir()))
        raise ServerError(
            f"The Triton server in {wheel} has no Python backend for Python {version}, only for {have}; install this "
            "package under one of those."
        )
    target = folder / "python"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    backend = wheel / "backends" / "python"
    for path in (backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub):
        (target / path.name).symlink_to(path)
    return folder


def usable_installation(folders: Folders) -> Installation:
    """Find a tritonserver that can run here. Raises ServerError if there is none, or if its Python backend does not
    work with this environment or these folders."""
    installation = find_installation()
    check_interpreter(installation)
    check_paths(folders)
    return installation


def check_interpreter(installation: Installation) -> None:
    """Raise ServerError if the wheel's Python backend does not work with this Python environment."""
    if installation.wheel_dir is None:
        return
    import numpy

    if int(numpy.__version__.split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {numpy.__version__} is installed; Triton's Python backend fails on text tensors with numpy 2. "
            "Run `pip install 'numpy<2'`."
        )
    if libpython() is None:
        raise ServerError(
            f"{_libpython_name()} was not found in {sysconfig.get_config_var('LIBDIR')}; Triton's backend needs it."
            " Use a Python built with --enable-shared (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared), or the system's "
            "with its libpython package."
        )


def check_paths(folders: Folders) -> None:
    """Raise ServerError if a folder has a path that is not ASCII, because the stubs cannot open its files."""
    for folder in (Path(sys.prefix), CODE, folders.home, folders.engines):
        if not str(folder).isascii():
            moved = folder == folders.engines and str(folders.home).isascii() and str(CODE).isascii()
            remedy = "Set LOOKAHEAD_ENGINES to" if moved else "Move the project to"
            after = "" if moved else ", and run `make setup` there"
            raise ServerError(
                f"{folder} has characters outside of ASCII; Triton's Python backend cannot open its files. {remedy} "
                f"a folder with a plain name{after}. Commands in process (bench, verify, tune) work here."
            )


def server_environment(
    folders: Folders, installation: Installation, environment: Mapping[str, str] = os.environ, *, replicas: int = 1
) -> dict[str, str]:
    """Environment variables of the server and its stubs. replicas: servers that share this machine's cores.

    The stubs find this interpreter and this package through PATH, and the interpreter's library through
    LD_LIBRARY_PATH. The wheel's stub ignores PYTHONPATH; others read it.
    """
    result = dict(environment)
    result["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CODE), environment.get("PYTHONPATH", "")]))
    library = libpython()
    if installation.wheel_dir is not None and library is not None:
        paths = [str(library.parent), environment.get("LD_LIBRARY_PATH", "")]
        result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    result.setdefault(*WAIT_POLICY)
    result.setdefault(NUM_THREADS, str(num_threads(replicas, environment)))
    # The stubs may run another interpreter than the virtual environment, whose compiled loops they reuse.
    result[compile_cache.VARIABLE] = str(compile_cache.cache_path().parent)
    return result | served_variables(folders)


def served_variables(folders: Folders) -> dict[str, str]:
    """Environment variables of every served model, on this machine or in a container."""
    return {
        "LOOKAHEAD_HOME": str(folders.home),
        "LOOKAHEAD_CODE": str(CODE),
        "LOOKAHEAD_ENGINES": str(folders.engines),
        "LOOKAHEAD_CACHE": str(folders.cache),
        "OPENBLAS_NUM_THREADS": "1",  # for numpy; the engine's passes do not use OpenBLAS
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def libpython() -> Path | None:
    """Path of the shared library of this interpreter; None if it has none."""
    folders = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib", sysconfig.get_config_var("LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"]
    candidates = (Path(folder) / _libpython_name() for folder in folders if folder)
    return next((path for path in candidates if path.is_file()), None)


def _libpython_name() -> str:
    return f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"


def _found(path: Path, origin: str, wheel: Path | None) -> Installation:
    """Installation of the server at a path. LOOKAHEAD_TRITONSERVER may name the server in the wheel."""
    inside = wheel is not None and wheel in path.resolve().parents
    return Installation(path, origin, wheel if inside else None)


def _wheel_dir() -> Path | None:
    """Root of the server tree inside the nvidia-pytriton wheel, without importing that package."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).resolve().parent / "tritonserver"
    return folder if (folder / "bin" / "tritonserver").is_file() else None

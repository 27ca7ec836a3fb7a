"""Examination of this machine, and of a model's settings on it, for `lookahead doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

from packaging.requirements import Requirement

from pipeline.checkpoint.disk import gigabytes
from pipeline.cli.options import resolve
from pipeline.config.folders import Folders, folders
from pipeline.engine.artifact import artifact_dir
from pipeline.engine.backend import Finding, backend_of
from pipeline.engine.fingerprint import version_of
from pipeline.errors import ConfigError, UserError
from pipeline.files import can_be_written, existing_part
from pipeline.server.discovery import check_etcd
from pipeline.server.startup import check_start

_DISTRIBUTION = "lookahead-pipeline"


def examine_machine() -> list[Finding]:
    """All findings, the cheapest checks first. Changes nothing and needs no network."""
    from pipeline.config.registry import backend_names

    where = folders()
    machine = [_python(), *_packages(), _compiler(), *_hardware(), *_room(where), *_server(where)]
    backends = [found for name in backend_names() for found in backend_of(name).findings()]
    return [*machine, _dynamo(), *backends, _hub()]


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if (3, 10) <= sys.version_info[:2] <= (3, 12):
        return Finding("python", "ok", found)
    return Finding(
        "python",
        "fail",
        found,
        "Use Python 3.10, 3.11 or 3.12: the server needs numpy 1.26, which supports no other version.",
    )


def _packages() -> Iterator[Finding]:
    """Compare installed versions with the version ranges that this package declares."""
    try:
        declared = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "packages", "note", f"{_DISTRIBUTION} is not installed, only run from its folder", "Run `make setup`."
        )
        return
    wrong = []
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement} (found {version or 'none'})")
    if wrong:
        yield Finding("packages", "fail", "; ".join(wrong), "Run `make setup`, which installs the tested versions.")
    else:
        names = ("torch", "transformers", "numpy", "tritonclient")
        yield Finding("packages", "ok", ", ".join(f"{name} {version_of(name)}" for name in names))


def _compiler() -> Finding:
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler:
        return Finding("C compiler", "ok", compiler)
    return Finding("C compiler", "note", "none", "For the torch engine on a GPU, install gcc or clang.")


def _hardware() -> Iterator[Finding]:
    from pipeline.config.hardware import detect_hardware

    hardware = detect_hardware()
    if hardware.gpu is None:
        yield Finding("GPU", "note", "none that torch can use; the torch engine runs on the CPU")
    else:
        yield Finding("GPU", "ok", f"{hardware.gpu}, compute capability {hardware.compute_capability / 10:.1f}")


def _room(where: Folders) -> Iterator[Finding]:
    import psutil

    from pipeline.engine.memory import available_bytes

    available = available_bytes()
    found = f"{gigabytes(available)} of {gigabytes(psutil.virtual_memory().total)} available"
    enough = available >= 4e9
    yield Finding(
        "memory",
        "ok" if enough else "fail",
        found,
        "" if enough else "The default model needs 4 GB; close other programs.",
    )
    for part, folder, needed in (("engines", where.engines, 1_000_000_000), ("cache", where.cache, 500_000_000)):
        free = shutil.disk_usage(existing_part(folder)).free
        found = f"{folder}, {gigabytes(free)} free"
        variable = f"LOOKAHEAD_{part.upper()}"
        if not can_be_written(folder):
            yield Finding(part, "fail", f"{found}, not writable", f"Set {variable} to a folder that you may write to.")
        elif free < needed:
            yield Finding(part, "fail", found, f"Free {gigabytes(needed)}, or set {variable} to a larger disk.")
        else:
            yield Finding(part, "ok", found)


def _server(where: Folders) -> Iterator[Finding]:
    from pipeline.errors import ServerError
    from pipeline.server.installation import backends_dir, usable_installation

    try:
        installation = usable_installation(where)
    except ServerError as error:
        yield Finding("tritonserver", "fail", "none that can serve here", str(error))
    else:
        yield Finding("tritonserver", "ok", f"{installation.executable} ({installation.origin})")
        names = sorted(path.name for path in backends_dir(installation.executable).glob("*") if path.is_dir())
        yield Finding("Triton backends", "ok" if "python" in names else "fail", ", ".join(names) or "none", "")


def _dynamo() -> Finding:
    from pipeline.dynamo.services import INSTALL, has_dynamo

    if has_dynamo():
        return Finding("OpenAI API", "ok", f"NVIDIA Dynamo {version_of('ai-dynamo')}")
    return Finding("OpenAI API", "note", "NVIDIA Dynamo is not installed; Triton serves alone", f"Run `{INSTALL}`.")


def _hub() -> Finding:
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "no HF_TOKEN: gated models cannot be fetched"
    return Finding("hub", "note", f"offline (HF_HUB_OFFLINE is set); {token}" if offline else token)


def examine_config(model: str, profile: str, overrides: Sequence[str]) -> Iterator[Finding]:
    """Findings for a model under a profile: its settings, and whether this machine can build and serve it. The status
    is "ok" if nothing is refused."""
    subject = f"{model} ({profile})"
    try:
        resolved = resolve(model, profile, overrides)
    except UserError as error:
        faults = error.faults if isinstance(error, ConfigError) else ()
        for key, text in faults or ((subject, str(error)),):
            yield Finding(key or subject, "fail", text, "Correct it in the YAML, or with --set.")
        return
    yield Finding(subject, "ok", f"the settings are valid for backend {resolved.backend}")
    backend = backend_of(resolved.backend)
    folder = artifact_dir(folders(), resolved.model.name, resolved.profile.name)

    def check_build() -> str:
        backend.require_resources(resolved, folder)
        return "tools, disk and memory suffice"

    yield _tried("build here", check_build)
    yield _tried("serve here", lambda: check_start(resolved, folders()))
    if resolved.profile.server.discovery == "etcd":
        yield _tried("discovery", check_etcd)


def _tried(part: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(part, "ok", check())
    except UserError as error:
        return Finding(part, "fail", "refused", str(error))

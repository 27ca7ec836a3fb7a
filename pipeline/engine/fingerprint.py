"""Fingerprint of an engine: everything that a build depends on. Engines with equal fingerprints are interchangeable;
any difference requires a new build. Also the versions of program and packages, and the processor's name."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from pipeline.config.schema import Device, Dtype, Frozen, ResolvedConfig
from pipeline.errors import BuildError

Flag = str | int | float | bool
# Instruction sets that a pass may use, as Linux names them.
INSTRUCTION_SETS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
# Folders of the package with the code that the tokens of an output depend on.
TOKEN_CODE = ("backends", "decoding", "dynamo", "engine", "llmapi", "triton_models")


class Fingerprint(Frozen):
    """Everything that a built engine depends on."""

    format: int = Field(2, description="Layout of the artifact; changes when older ones must be built again.")
    checkpoint: str = Field(description="Content hash of the checkpoint.")
    architecture: str = Field(description="Class name of the model.")
    backend: str
    libraries: dict[str, str] = Field(description="Versions of the libraries that build and run the engine.")
    device: str = Field(description="Kind of device that the engine runs on, e.g. cpu-x86_64 or cuda-sm90.")
    dtype: Dtype
    flags: dict[str, Flag] = Field(description="Every build flag.")
    max_window_size: int
    max_ngram_size: int
    max_verification_set_size: int

    @classmethod
    def of(
        cls, resolved: ResolvedConfig, checkpoint: str, libraries: dict[str, str], device: str, flags: dict[str, Flag]
    ) -> Fingerprint:
        """The fingerprint of an engine of a config. For the other arguments see the fields."""
        window, ngram, candidates = resolved.lookahead.sizes
        return cls(
            checkpoint=checkpoint,
            architecture=resolved.model.architecture,
            backend=resolved.backend,
            libraries=libraries,
            device=device,
            dtype=resolved.dtype,
            flags=flags,
            max_window_size=window,
            max_ngram_size=ngram,
            max_verification_set_size=candidates,
        )

    @property
    def digest(self) -> str:
        """Hash of all fields."""
        return digest_of(self.model_dump(mode="json"))

    def entries(self) -> dict[str, Flag]:
        """All fields, libraries and flags in one dict."""
        plain = self.model_dump(mode="json", exclude={"libraries", "flags"})
        return {**plain, **self.libraries, **self.flags}


def differences(mine: Mapping[str, Flag], others: Mapping[str, Flag]) -> Iterator[str]:
    """Yield one phrase per differing entry: "transformers 5.17.0 instead of 5.23.0"."""
    for name in sorted(mine.keys() | others.keys()):
        if mine.get(name) != others.get(name):
            yield f"{name} {mine.get(name, 'unset')} instead of {others.get(name, 'unset')}"


def library_versions(backend: str, names: Sequence[str]) -> dict[str, str]:
    """Installed versions of the libraries that a backend's engines depend on. Raises BuildError if one is missing."""
    found: dict[str, str] = {}
    for name in names:
        version = version_of(name)
        if version is None:
            raise BuildError(f"The {backend} backend needs the package {name}, which is not installed here.")
        found[name] = version
    return found


def device_architecture(device: Device) -> str:
    """Kind of this machine's device, such as cpu-x86_64 or cuda-sm90. Raises BuildError if torch has no CUDA device."""
    if device == "cpu":
        return f"cpu-{platform.machine()}"
    import torch

    if not torch.cuda.is_available():
        raise BuildError("The engine runs on a CUDA device; torch finds none on this machine. Use --set device=cpu.")
    major, minor = torch.cuda.get_device_capability(0)
    return f"cuda-sm{major}{minor}"


def digest_of(value: object) -> str:
    """Hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def commit(file: Path = Path(__file__)) -> str | None:
    """Commit of the checkout that the package runs from, with "-dirty" if files have changed. None without git, and for
    an installed package, which may lie in the checkout of another project. file: a file of the package."""
    git = ["git", "-C", str(file.parent)]
    try:
        for arguments in (
            ["ls-files", "--error-unmatch", file.name],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            done = subprocess.run([*git, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # git is not installed, or does not track the file
        return None
    return done.stdout.strip()


@functools.cache
def code_digest(package: Path = Path(__file__).parents[1]) -> str:
    """Hash of the sources in TOKEN_CODE, in which two commits of one version may differ."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in TOKEN_CODE for path in (package / folder).rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@functools.cache
def version_of(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of this machine's processor, from Linux or else from Python. Virtual machines give processors of several
    generations one name, and hide instructions. So on x86 it includes family, model and the instruction sets that
    matter to a pass: "AMD EPYC (family 25, model 17, avx2 avx512f avx512_vnni)"."""
    try:
        first = cpuinfo.read_text().split("\n\n")[0]
    except OSError:
        first = ""
    fields = dict(re.findall(r"^([^\t:]+?)\s*: *(.*)$", first, re.MULTILINE))
    name: str = fields.get("model name", "") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= fields.keys():
        flags = fields.get("flags", "").split()
        sets = " ".join(name for name in INSTRUCTION_SETS if name in flags)
        name += f" (family {fields['cpu family']}, model {fields['model']}{', ' if sets else ''}{sets})"
    return name

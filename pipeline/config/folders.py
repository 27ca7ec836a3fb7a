"""Folders of configs, engines and downloads, and the environment variables that set them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.cache_folder import cache_folder
from pipeline.errors import ConfigError
from pipeline.files import can_be_written

# Folder of the import path with this package.
CODE = Path(__file__).resolve().parents[2]
# Folder of configs/, triton_repo/ and docker/: the top of a checkout, or the package in a wheel.
_IN_WHEEL = CODE / "pipeline" / "shipped"
SHIPPED = _IN_WHEEL if _IN_WHEEL.is_dir() else CODE


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of this program. home: of the shipped configs/, triton_repo/ and docker/. engines: built artifacts.
    cache: downloads, may be deleted. work: folder whose configs/ take precedence over the shipped ones. shared_engines:
    artifacts in a folder that this user cannot write; those in `engines` link to their files."""

    home: Path
    engines: Path
    cache: Path
    work: Path | None = None
    shared_engines: Path | None = None

    @property
    def engine_folders(self) -> tuple[Path, ...]:
        """Folders of artifacts; this program writes to the first."""
        return (self.engines,) if self.shared_engines is None else (self.engines, self.shared_engines)

    @property
    def models(self) -> tuple[Path, ...]:
        """Folders of model configs; the first match wins."""
        return self._configs("models")

    @property
    def profiles(self) -> tuple[Path, ...]:
        return self._configs("profiles")

    def _configs(self, kind: str) -> tuple[Path, ...]:
        roots = [self.home] if self.work is None else [self.work, self.home]
        return tuple(dict.fromkeys((root / "configs" / kind).resolve() for root in roots))


def expanded(written: str) -> Path:
    """Expand `~` in a path. Raises ConfigError if there is no such home folder."""
    try:
        return Path(written).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{written}: there is no such user, or the user has no home folder. Use an absolute path; LOOKAHEAD_CACHE "
            "sets the folder of downloads."
        ) from error


def folders(environment: Mapping[str, str] = os.environ) -> Folders:
    """Read the folders from the environment.

    home: LOOKAHEAD_HOME, else the folder of the package. engines: LOOKAHEAD_ENGINES, else `engines/` in the checkout,
    or in the working folder if the package is installed from a wheel; a folder in the cache if that exists and this
    user cannot write it. cache: LOOKAHEAD_CACHE, else XDG_CACHE_HOME/lookahead, else ~/.cache/lookahead. Raises
    ConfigError if home has no configs, or the working folder was removed."""
    named = environment.get("LOOKAHEAD_HOME")
    home = expanded(named).resolve() if named else SHIPPED
    if not (home / "configs" / "models").is_dir():
        remedy = (
            "Set LOOKAHEAD_HOME to a checkout of the project, or unset it." if named else "Install the package again."
        )
        raise ConfigError(f"There is no configs/models folder in {home}. {remedy}")
    try:
        work = Path.cwd()
    except FileNotFoundError:
        raise ConfigError("The working folder was removed. Change to another folder.") from None
    asked = environment.get("LOOKAHEAD_ENGINES")
    engines = expanded(asked).resolve() if asked else (work if home == _IN_WHEEL else home) / "engines"
    cache = expanded(cache_folder(environment)).resolve()
    if not engines.is_dir() or can_be_written(engines):
        return Folders(home, engines, cache, work)
    own = cache / "engines" / hashlib.sha256(bytes(engines)).hexdigest()[:16]
    return Folders(home, own, cache, work, shared_engines=engines)

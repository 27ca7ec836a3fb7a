"""Where configs, engines and downloads lie, and the environment variables that move them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.files import cache_folder


@dataclass(frozen=True, slots=True)
class Places:
    """home: folder that holds configs/ and triton_repo/. engines: built artefacts. cache: downloads, may be deleted."""

    home: Path
    engines: Path
    cache: Path

    @property
    def models(self) -> Path:
        return self.home / "configs" / "models"

    @property
    def profiles(self) -> Path:
        return self.home / "configs" / "profiles"


def expanded(written: str) -> Path:
    """A path as the user wrote it, `~` as the home folder. Raises ConfigError if there is no such folder."""
    try:
        return Path(written).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{written}: there is no such user, or this user has no home folder. Write the whole path; the folder of "
            "downloads is named by LOOKAHEAD_CACHE."
        ) from error


def places(environment: Mapping[str, str] = os.environ) -> Places:
    """LOOKAHEAD_HOME (else the checkout that the package lies in), LOOKAHEAD_ENGINES (else home/engines),
    LOOKAHEAD_CACHE (else XDG_CACHE_HOME/lookahead, else ~/.cache/lookahead). Raises ConfigError if home holds no
    configs."""
    named = environment.get("LOOKAHEAD_HOME")
    home = expanded(named) if named else Path(__file__).resolve().parents[2]
    if not (home / "configs" / "models").is_dir():
        found = f"LOOKAHEAD_HOME is {home}" if named else f"the package lies in {home}"
        raise ConfigError(
            f"There is no configs/models folder: {found}. "
            "Set LOOKAHEAD_HOME to a checkout of the project, or install it from one with `pip install -e .`."
        )
    engines = environment.get("LOOKAHEAD_ENGINES")
    return Places(
        home=home.resolve(),
        engines=expanded(engines).resolve() if engines else home.resolve() / "engines",
        cache=expanded(cache_folder(environment)).resolve(),
    )

"""The folder for downloads and compiled code."""

from __future__ import annotations

import os
from collections.abc import Mapping


def cache_folder(environment: Mapping[str, str]) -> str:
    """LOOKAHEAD_CACHE, else a folder in XDG_CACHE_HOME, else one in ~/.cache. Does not expand `~`."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return environment.get("LOOKAHEAD_CACHE") or os.path.join(cache, "lookahead")

"""Where things lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.places import Places, places
from pipeline.errors import ConfigError


def test_places_follow_the_environment(tmp_path: Path) -> None:
    found = places({"LOOKAHEAD_ENGINES": str(tmp_path / "e"), "LOOKAHEAD_CACHE": str(tmp_path / "c")})
    assert (found.engines, found.cache) == (tmp_path / "e", tmp_path / "c")
    assert places({"XDG_CACHE_HOME": str(tmp_path)}).cache == tmp_path / "lookahead"
    assert isinstance(found, Places)
    with pytest.raises(ConfigError, match="LOOKAHEAD_HOME"):
        places({"LOOKAHEAD_HOME": str(tmp_path)})

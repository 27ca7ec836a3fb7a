"""Paths in the command line of a server."""

from __future__ import annotations

from pathlib import Path

from pipeline.server.tritonserver_command import plain_names


def test_plain_paths_keep_their_names():
    names, links = plain_names("la1", repository=Path("/srv/my-engines/v1.2_a"))
    assert names == {"repository": Path("/srv/my-engines/v1.2_a")}
    assert not links

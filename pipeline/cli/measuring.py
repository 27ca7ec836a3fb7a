"""Shared by the commands that measure: the engine, and the address of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.cli import output
from pipeline.config.places import places

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig
    from pipeline.engine.artifact import Artifact


def built_artifact(resolved: ResolvedConfig) -> Artifact:
    """Return the engine; build it if it does not exist."""
    from pipeline.tuning.planned_engine import planned_engine

    with output.working("opening the engine") as note:
        return planned_engine(resolved, places(), note=note).artifact


def check_url(url: str | None, allow_remote: bool) -> None:
    if url is not None:
        from pipeline.bench.contenders.remote import check_address

        check_address(url, allow_remote)

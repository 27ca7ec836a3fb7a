"""Reports of a backend or this machine: findings of `lookahead doctor`, tables of versions."""

from __future__ import annotations

from typing import Literal, NamedTuple

# fail: the model (by default the default one) cannot be built or served on this machine. note: an optional part is
# absent or differs.
State = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """part: the examined part. found: its state. remedy: the action that fixes it."""

    part: str
    state: State
    found: str
    remedy: str = ""


class VersionTable(NamedTuple):
    """rows: one text per column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

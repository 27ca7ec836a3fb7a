"""Reports of a backend or this machine: findings of `lookahead doctor`, tables of versions."""

from __future__ import annotations

from typing import Literal, NamedTuple

# fail: the model cannot be built or served on this machine; without a named model, the default one. note: something
# optional is absent or differs.
State = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """part: what was examined. found: what is there. remedy: what to do about it."""

    part: str
    state: State
    found: str
    remedy: str = ""


class VersionTable(NamedTuple):
    """rows: one text per column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

"""One line of `lookahead doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

# fail: what was asked for cannot be built or served on this machine; without a model, the default one. note: something
# optional is absent or differs.
State = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """part: what was looked at. found: what is there. remedy: what to do about it."""

    part: str
    state: State
    found: str
    remedy: str = ""

"""The two run folders of `lookahead serve`: servers run in one of them, so that others can be started in the other
before they take over. A small file names the one that serves."""

from __future__ import annotations

from pathlib import Path

from pipeline.files import write_whole

_SERVING, _SECOND = "serving", "second"


def serving_dir(base: Path) -> Path:
    """The run folder in which servers run, or ran last. base: the first of the two, which holds the other."""
    try:
        name = (base / _SERVING).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return base
    return base / _SECOND if name == _SECOND else base


def free_dir(base: Path) -> Path:
    return base if serving_dir(base) != base else base / _SECOND


def set_serving(base: Path, folder: Path) -> None:
    write_whole(base / _SERVING, ("" if folder == base else _SECOND) + "\n")

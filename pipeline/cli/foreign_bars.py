"""Progress of other packages' tqdm bars, shown by our own display: transformers' conversions, downloads of the hub."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class BarDisplay(Protocol):
    """Where bars are shown. key: of one bar. `show` is called often, `hide` once."""

    def show(self, key: int, name: str, completed: float, total: float | None) -> None: ...

    def hide(self, key: int) -> None: ...


class _Sink(io.StringIO):
    """Receives what a bar prints. It is a terminal for bars that are off without one."""

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return True


@contextmanager
def foreign_bars(display: BarDisplay) -> Iterator[None]:
    """Redirect every tqdm bar that begins in the block. Bars print nothing themselves."""
    from tqdm.std import tqdm

    sink = _Sink()
    begin, close = tqdm.__init__, tqdm.close

    def begin_silently(bar: Any, *arguments: Any, **options: Any) -> None:
        options["file"] = sink
        begin(bar, *arguments, **options)

    def show(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        display.show(id(bar), (bar.desc or "").rstrip(": "), bar.n, bar.total)
        return True

    def hide(bar: Any) -> None:
        close(bar)
        display.hide(id(bar))

    original = {name: getattr(tqdm, name) for name in ("__init__", "display", "close")}
    tqdm.__init__, tqdm.display, tqdm.close = begin_silently, show, hide
    try:
        yield
    finally:
        for name, method in original.items():
            setattr(tqdm, name, method)

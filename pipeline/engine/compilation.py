"""Compiles all loops of the package, so that no later command compiles anything.

python -m pipeline.engine.compilation      compiles what is missing, with progress
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from pipeline.decoding.compile_cache import cache_path, is_complete, mark_complete

COMPILING = "compiling the loops of drafting and of the CPU engine for this processor, once (about a minute)"

# Interval of progress lines without a terminal.
SECONDS_PER_LINE = 10.0


def ensure_compiled(note: Callable[[str], None]) -> None:
    """Compile the loops that have no machine code yet. note: called with the progress."""
    if is_complete():
        return
    note(COMPILING)
    from numba.core import event

    from pipeline.decoding.warm_up import warm_up
    from pipeline.engine.torch.lean.warm_up import warm_up_pass

    class Counter(event.Listener):  # type: ignore[misc]
        num_done = 0

        def on_start(self, event: Any) -> None:
            pass

        def on_end(self, event: Any) -> None:
            self.num_done += 1
            note(f"{COMPILING}: {self.num_done} done")

    with event.install_listener("numba:compile", Counter()):
        warm_up()
        warm_up_pass()
    mark_complete()


def main() -> None:
    """Run `ensure_compiled` and print the progress: in a terminal in one line, otherwise a line every few seconds."""
    on_terminal = sys.stderr.isatty()
    printed: list[float] = []

    def note(text: str) -> None:
        progress = text.removeprefix(f"{COMPILING}: ")
        if on_terminal and printed:
            print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
        elif not printed or time.monotonic() - printed[-1] >= SECONDS_PER_LINE:
            print(progress, file=sys.stderr, flush=True)
            printed.append(time.monotonic())

    ensure_compiled(note)
    if printed:
        print(("\r\x1b[K" if on_terminal else "") + f"The compiled loops are in {cache_path()}.", file=sys.stderr)


if __name__ == "__main__":
    main()

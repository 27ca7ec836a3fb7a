"""Ends a server whose Python backend has given up a call that its model still runs.

Triton waits for a model's process in steps of a second of the real clock. After a suspension of all processes (SIGSTOP,
a laptop's sleep), or a jump of the clock, it may take a process for dead that answers a moment later. It then frees the
inputs of the call, which the model still reads, and takes each later answer of the model for that of the next call.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.triton_models.handover import handover_dir
from pipeline.triton_models.own_server import server_process

# Triton's message, with the name of the model's instance.
_GIVEN_UP = re.compile(r"Stub process '(\w+)_\d+_\d+' is not healthy")


def end_server_after_abandoned_call(text: str) -> None:
    """Kill the server of this process if the text of an error reports a dead model although its process runs. Does
    nothing without a guard, which starts the server again."""
    found = _GIVEN_UP.search(text)
    if found is None or handover_dir() is None:
        return
    import psutil  # imported only here, because it takes memory

    pid, _ = server_process()
    for process in psutil.process_iter(["ppid", "cmdline"]):
        if process.info["ppid"] == pid and _runs(process.info["cmdline"] or (), found[1]):
            note = f"Triton gave up a call of {found[1]}, whose process runs. The server ends."
            print(note, file=sys.stderr, flush=True)
            os.kill(pid, signal.SIGKILL)
            return


def _runs(arguments: Sequence[str], model: str) -> bool:
    """Whether a command line is that of a model's process. It has the path MODEL/VERSION/model.py."""
    return any(Path(each).name == "model.py" and model in Path(each).parts[-3:] for each in arguments)

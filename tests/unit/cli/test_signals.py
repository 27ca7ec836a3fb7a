"""SIGTERM ends a command, also while Python runs a finalizer or a callback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

COMMAND = """
import os, signal, time
from pipeline.cli import leave_on_sigterm

class Noticed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)  # handled before this line ends

leave_on_sigterm()
{how}
time.sleep(60)
"""


@pytest.mark.parametrize(
    "how",
    [
        "Noticed()",
        "signal.signal(signal.SIGTERM, signal.default_int_handler); Noticed()",  # as `serve` handles it
        "signal.raise_signal(signal.SIGTERM)",
    ],
)
def test_sigterm_ends_a_command_wherever_it_is_handled(how: str) -> None:
    code = COMMAND.format(how=how)

    done = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, capture_output=True, check=False)

    assert done.returncode in (143, 130, -2), done.stderr
    assert b"ignored" not in done.stderr

"""The command line in the tests' own process."""

from __future__ import annotations

import pytest

from pipeline import cli


def exit_code(*arguments: str) -> int:
    """Run one command; its exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)

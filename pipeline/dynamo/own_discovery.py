"""Dynamo's discovery folder of a fleet without other machines: in memory, with a link in the run folder.

A worker writes its entries there whenever it starts, so on a full disk a killed worker would not come back.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from pipeline.errors import ServerError

DISCOVERY = "discovery"
_MEMORY = Path("/dev/shm")  # Triton needs it, too
_PREFIX = "lookahead-discovery-"


def create_discovery(run_dir: Path) -> None:
    """Create an empty folder, readable for this user only, and remove that of an earlier fleet. Raises ServerError if
    the shared memory cannot be written."""
    remove_discovery(run_dir)
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY)
    except OSError as error:
        raise ServerError(
            f"{_MEMORY}, where the server has its shared memory, cannot be written: {error.strerror}. Mount it for "
            "this user, with some space (docker: --shm-size=1g)."
        ) from error
    (run_dir / DISCOVERY).symlink_to(folder)


def remove_discovery(run_dir: Path) -> None:
    """Remove the folder and its link, if they exist."""
    link = run_dir / DISCOVERY
    if link.is_symlink():
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink(missing_ok=True)
    elif link.is_dir():  # a worker creates it if the link was removed meanwhile
        shutil.rmtree(link)

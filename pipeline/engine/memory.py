"""Memory of this machine, before something large is loaded."""

from __future__ import annotations

import psutil

from pipeline.checkpoint.disk import gigabytes
from pipeline.errors import UserError


def require_memory(num_bytes: int, purpose: str, remedy: str, error: type[UserError]) -> None:
    """Raises `error` if less than num_bytes is available."""
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise error(
            f"{purpose} needs about {gigabytes(num_bytes)} of memory; {gigabytes(available)} are available. {remedy}"
        )

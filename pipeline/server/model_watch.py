"""Detects that a process of a server's model died. Standard library only, because the guard uses it."""

from __future__ import annotations

import time

from pipeline.server.processes import model_processes


class ModelWatch:
    """Detects models whose process died. Triton does not restart such a process, still reports itself ready, and leaves
    the model's requests unanswered."""

    def __init__(self, server_id: str) -> None:
        self._server_id = server_id
        self._models: dict[int, str] = {}
        self._lost_since: dict[int, float] = {}

    def dead_models(self, patience: float) -> tuple[str, ...]:
        """Models whose process was seen earlier and is gone, in the order in which that was seen; empty until one has
        been gone for `patience` seconds. Call it often."""
        alive, now = model_processes(self._server_id), time.monotonic()
        # A process that is found again was not gone: one read of /proc can miss it.
        self._lost_since = {pid: since for pid, since in self._lost_since.items() if pid not in alive}
        for pid in sorted(self._models.keys() - alive.keys()):
            self._lost_since.setdefault(pid, now)
        self._models |= alive
        if not any(now - since >= patience for since in self._lost_since.values()):
            return ()
        return tuple(dict.fromkeys(self._models[pid] for pid in self._lost_since))

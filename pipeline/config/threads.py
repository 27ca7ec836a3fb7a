"""Wait policy of the engine's threads."""

from __future__ import annotations

# A variable and its value, for `environment.setdefault(*WAIT_POLICY)` before torch is imported: OpenMP reads it once.
# Where other processes use the cores too, threads that spin at every barrier wait for a descheduled thread: next to one
# busy process on two cores, a step took seven times as long (docs/decisions/004).
WAIT_POLICY = ("OMP_WAIT_POLICY", "PASSIVE")

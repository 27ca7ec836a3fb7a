"""Variables of the engine's threads."""

from __future__ import annotations

# How many threads compute a pass. Read by torch too, once, when it is imported.
NUM_THREADS = "OMP_NUM_THREADS"
# A variable and its value, for `environment.setdefault(*WAIT_POLICY)` before torch is imported: OpenMP reads it once.
# Where other processes use the cores too, threads that spin at every barrier wait for a descheduled thread: next to one
# busy process on two cores, a step took seven times as long (docs/decisions/004).
WAIT_POLICY = ("OMP_WAIT_POLICY", "PASSIVE")

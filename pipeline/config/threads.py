"""How the engine's threads wait for each other."""

from __future__ import annotations

# A variable and its value, for `environment.setdefault(*WAIT_POLICY)` before torch is loaded: OpenMP reads it once.
# Where other processes want the cores too, threads that spin at every barrier wait for one that was put aside: next to
# one busy process on two cores, a step took seven times as long (docs/decisions/004).
WAIT_POLICY = ("OMP_WAIT_POLICY", "PASSIVE")

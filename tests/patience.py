"""Time limits of waits in tests. A passing test never reaches them."""

PATIENCE_S = 300.0

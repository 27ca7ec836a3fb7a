"""How long a test waits for what must come. A passing test never waits this long, however busy the machine."""

PATIENCE_S = 300.0

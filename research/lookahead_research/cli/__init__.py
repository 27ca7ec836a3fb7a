"""The verbs below `lookahead research`."""

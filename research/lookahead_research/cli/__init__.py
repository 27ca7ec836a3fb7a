"""The commands of `lookahead research`."""

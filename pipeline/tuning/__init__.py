"""Measured cost of a pass, and what is chosen from it."""

"""Generators that a bench measures: engines in process, servers, baselines."""

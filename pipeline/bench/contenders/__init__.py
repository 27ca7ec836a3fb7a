"""Generators that a bench compares: engines in process, servers, baselines."""

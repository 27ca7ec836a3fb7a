"""Staged check of a machine with a GPU."""

"""Validation of a machine, stage by stage."""

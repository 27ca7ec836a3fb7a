"""Inputs of measurements: prompts and recorded outputs."""

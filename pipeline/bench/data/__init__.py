"""Prompts and recorded outputs that measurements read."""

"""Comparison of outputs with those of plain decoding."""

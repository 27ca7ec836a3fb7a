"""Comparison of outputs with plain decoding."""

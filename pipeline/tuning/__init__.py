"""Measurement of pass times, and engines built with them."""

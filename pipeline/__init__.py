"""Lossless low-latency LLM serving on Triton: checkpoint -> engine -> model repository -> server."""

__version__ = "0.1.0"

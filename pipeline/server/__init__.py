"""Finds and runs tritonserver, and its clients."""

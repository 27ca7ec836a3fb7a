"""Starts, supervises, switches and stops tritonserver and the processes beside it; clients of a server."""

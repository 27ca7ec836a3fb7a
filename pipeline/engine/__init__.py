"""The engine contract, artifacts, and the scheduler that shares one engine among requests."""

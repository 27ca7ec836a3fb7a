"""The engine contract, artefacts, and the scheduler that shares one engine among requests."""

"""Engines behind one contract, their artefacts and the scheduler that shares one among requests."""

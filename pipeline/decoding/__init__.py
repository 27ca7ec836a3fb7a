"""The algorithms: draft trees, draft sources, acceptance, sampling, the decode loop. No server, no model."""

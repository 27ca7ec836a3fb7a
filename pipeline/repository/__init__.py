"""Engine artefact -> Triton model repository."""

"""Engine artifact -> Triton model repository."""

"""The models of triton_repo/ without Triton, from input tensors to output tensors."""

"""What runs inside the server: the models of triton_repo/ without Triton, from tensors in to tensors out."""

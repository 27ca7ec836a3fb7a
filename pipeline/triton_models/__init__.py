"""Logic of the models in triton_repo/, from input tensors to output tensors."""

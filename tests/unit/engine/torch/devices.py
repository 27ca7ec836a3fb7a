"""The device of the tests: engines are tested on a GPU where torch finds one. References stay on the CPU."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

"""Without a GPU, Triton interprets the kernels. It reads the setting when a kernel is defined, so before any import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

"""Passes of dense decoders on an NVIDIA GPU: fused kernels between matrix products, replayed as CUDA graphs.

Kernels are written in the language Triton (`import triton`), which is unrelated to the server of that name.
"""

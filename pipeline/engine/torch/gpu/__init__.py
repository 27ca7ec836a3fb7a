"""Passes of dense decoders on an NVIDIA GPU: fused kernels between matrix products, replayed as CUDA graphs.

Kernels are written in the language Triton (`import triton`), which has nothing to do with the server of that name.
"""

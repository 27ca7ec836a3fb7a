"""Passes of dense decoders on an NVIDIA GPU: fused kernels between matrix products, replayed as CUDA graphs."""

"""The TensorRT-LLM backend, release line 1.2."""

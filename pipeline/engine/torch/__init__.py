"""The torch engine: transformers models, or passes of its own (`lean` on a CPU, `gpu` on a GPU), with a slot KV cache
and tree attention."""

"""The torch engine: unmodified transformers models with a slot KV cache and tree attention."""

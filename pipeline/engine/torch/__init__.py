"""The torch engine: transformers models, or the lean pass, with a slot KV cache and tree attention."""

"""Life after engines: drafts from our trie inside TensorRT-LLM's PyTorch LLM API (release line 1.3 and later).

Written to the documented contract; **nothing here has been run with TensorRT-LLM**. `drafts` and `requests` know
nothing of it and are tested as they are; `trie_drafter` and `service` are tested against small stand-ins for its
classes.
"""

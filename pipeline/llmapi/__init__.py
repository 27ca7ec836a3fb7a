"""Drafts from our trie in TensorRT-LLM's PyTorch LLM API, release line 1.3 and later, which has no engines.

Written to the documented contract; **nothing here has been run with TensorRT-LLM**. `drafts` and `requests` do not
depend on it; the tests of `trie_drafter` and `service` replace its classes by small fakes.
"""

"""Drafts from our trie in TensorRT-LLM's PyTorch LLM API, release line 1.3 and later, which has no engines.

Written to the documented contract; **nothing here has been run with TensorRT-LLM**. Only `trie_drafter` and
`llm_arguments` import it; the tests replace its classes by small fakes.
"""

"""Drafts from our trie in TensorRT-LLM's PyTorch LLM API, release line 1.3 and later, which has no engines.

Written to the documented contract; **nothing here has been run with TensorRT-LLM**. Only `trie_drafter` and
`llm_arguments` import it; the tests replace its classes by small fakes.
"""

from typing import Literal

# Where drafts come from; see `settings.DraftSettings`. Here, because the command line imports it and no more.
Method = Literal["auto", "suffix_automaton", "trie", "ngram", "none"]

"""Draft sources of other projects, measured on the same texts as the trie in the same run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from pipeline.decoding.tree import DraftTree, IntArray, chain

# As in the benchmarks of prompt lookup.
LONGEST_NGRAM = 3


class PromptLookup:
    """Prompt lookup of transformers, with all inserted text as the prompt. The draft is the text after the first
    occurrence of the context's last tokens. max_tokens, max_context: capacity."""

    def __init__(self, max_tokens: int, max_context: int, draft_tokens: int) -> None:
        self._text = torch.zeros((1, max_tokens + max_context), dtype=torch.int64)
        self._num_tokens = 0
        self._lookup = PromptLookupCandidateGenerator(
            num_output_tokens=draft_tokens,
            max_matching_ngram_size=LONGEST_NGRAM,
            max_length=max_tokens + max_context + draft_tokens,
        )

    def insert(self, tokens: IntArray) -> None:
        """Insert one sequence [len]."""
        self._put(tokens)
        self._num_tokens += len(tokens)

    def propose(self, context: IntArray) -> DraftTree:
        """The draft after a context [len]."""
        self._put(context)
        num_tokens = self._num_tokens + len(context)
        candidates, _ = self._lookup.get_candidates(self._text[:, :num_tokens])
        return chain(candidates[0, num_tokens:].numpy().astype(np.int32))

    def _put(self, tokens: IntArray) -> None:
        self._text[0, self._num_tokens : self._num_tokens + len(tokens)] = torch.from_numpy(tokens)


PEERS = {"prompt-lookup": PromptLookup}


def create_peers(names: Sequence[str], max_tokens: int, max_context: int, draft_tokens: int) -> dict[str, PromptLookup]:
    """Create peers by name, of `PEERS`. max_tokens, max_context: see `PromptLookup`."""
    return {name: PEERS[name](max_tokens, max_context, draft_tokens) for name in names}

"""Others' retrieval of drafts, asked on the same texts as the trie in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from pipeline.decoding.tree import DraftTree, IntArray, chain
from pipeline.errors import UserError

# As the benchmarks of prompt lookup use it.
LONGEST_NGRAM = 3


class Peer(Protocol):
    """Text in, drafts out."""

    def insert(self, tokens: IntArray) -> None:
        """Take in one sequence."""

    def ask(self, context: IntArray) -> DraftTree:
        """What may follow context [len]."""


class PromptLookup:
    """Prompt lookup of transformers over all text inserted so far, as if it were the prompt. It drafts what follows the
    first occurrence of the last tokens. max_tokens, max_context: capacity."""

    def __init__(self, max_tokens: int, max_context: int, draft_tokens: int) -> None:
        self._text = torch.zeros((1, max_tokens + max_context), dtype=torch.int64)
        self._num_tokens = 0
        self._lookup = PromptLookupCandidateGenerator(
            num_output_tokens=draft_tokens,
            max_matching_ngram_size=LONGEST_NGRAM,
            max_length=max_tokens + max_context + draft_tokens,
        )

    def insert(self, tokens: IntArray) -> None:
        self._put(tokens)
        self._num_tokens += len(tokens)

    def ask(self, context: IntArray) -> DraftTree:
        self._put(context)
        num_tokens = self._num_tokens + len(context)
        candidates, _ = self._lookup.get_candidates(self._text[:, :num_tokens])
        return chain(candidates[0, num_tokens:].numpy().astype(np.int32))

    def _put(self, tokens: IntArray) -> None:
        self._text[0, self._num_tokens : self._num_tokens + len(tokens)] = torch.from_numpy(tokens)


PEERS: dict[str, Callable[[int, int, int], Peer]] = {"prompt-lookup": PromptLookup}


def create_peers(names: Sequence[str], max_tokens: int, max_context: int, draft_tokens: int) -> dict[str, Peer]:
    """The peers by name, with room for text, for a context and in a draft. Raises UserError for one that is unknown."""
    for name in names:
        if name not in PEERS:
            raise UserError(f"There is no peer {name!r}; --peers takes {', '.join(PEERS)}.")
    return {name: PEERS[name](max_tokens, max_context, draft_tokens) for name in names}

"""Draft sources of other projects that `bench-trie` measures."""

from __future__ import annotations

import numpy as np
from lookahead_research.trie_peers import PromptLookup


def ids(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def test_prompt_lookup_continues_the_first_place_of_the_longest_suffix():
    peer = PromptLookup(max_tokens=20, max_context=4, draft_tokens=3)
    peer.insert(ids(1, 2, 3, 4, 5, 6))
    peer.insert(ids(9, 3, 4, 7, 8))

    draft = peer.propose(ids(0, 3, 4))
    assert (draft.token_ids.tolist(), draft.parents.tolist()) == ([5, 6, 9], [-1, 0, 1])
    assert peer.propose(ids(9, 3, 4)).token_ids.tolist() == [7, 8, 9]  # what was asked before is forgotten
    assert len(peer.propose(ids(0))) == 0

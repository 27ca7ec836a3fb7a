"""Draft trees of any form, and the segments of a pass over them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st

from pipeline.decoding.tree import DraftTree, tree_from_lists
from pipeline.engine.torch.slots import Segment, Slot


@st.composite
def draft_trees(draw: st.DrawFn, most: int, vocab_size: int) -> DraftTree:
    """Trees of up to `most` nodes."""
    reach = draw(st.sampled_from([1, 3, most + 1]))  # 1: chains
    parents = [draw(st.integers(max(-1, node - reach), node - 1)) for node in range(draw(st.integers(0, most)))]
    return tree_from_lists([draw(st.integers(0, vocab_size - 1)) for _ in parents], parents)


def segments_of(shapes: Iterable[tuple[int, int, DraftTree]]) -> list[Segment]:
    """Segments that follow each other, in slots 0, 1, ... shapes: cached tokens, pending tokens and tree of each."""
    segments: list[Segment] = []
    for slot, (cached, num_pending, tree) in enumerate(shapes):
        tokens = np.arange(100, 100 + cached + num_pending, dtype=np.int32)
        start = sum(segment.length for segment in segments)
        segments.append(Segment(Slot(slot, tokens, len(tokens), cached), tree, start, cached, num_pending))
    return segments

"""Inserts text into a trie and forgets it, in compiled loops."""

from __future__ import annotations

from pipeline.decoding.compiled import Plain, int64, kernel, subkernel
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.arrays import TrieArrays, slot_of
from pipeline.decoding.trie.nodes import (
    drop_node,
    find_child,
    join,
    lengthen,
    link,
    locate,
    new_node,
    split,
)

MAX_COUNT = 1 << 30


@subkernel
def _visit(trie: TrieArrays, row: int, start: int) -> None:
    """Count a further occurrence, which starts in slot `start`, of a node's string."""
    node = trie.nodes[row]
    node.count = min(node.count + 1, MAX_COUNT)
    node.start = start
    if node.previous > 0:
        link(trie, row, node.parent)


@subkernel
def _extend_suffix(trie: TrieArrays, above: int, row: int, token: int, depth: int, start: int) -> int:
    """Extend the suffix that starts in slot `start` and ends at node `above` by its `depth`-th token. row: the child
    with that token before longer suffixes were extended, or 0. Returns the suffix's new end node, or 0 if the string is
    new: its further tokens are then read from the text."""
    nodes = trie.nodes
    # A longer suffix may have cut or joined the edges of this one, but has not created a child of `above`.
    if row and (nodes[row].parent != above or nodes[row].token != token):
        row = find_child(trie, above, token)
    if not row:
        new_node(trie, above, token, trie.state[0].branch_length, 1, start)
        return 0
    # Two nodes become one if nothing else ends or branches between them.
    alone = nodes[row].next == 0 and nodes[row].previous == 0
    ours = alone and nodes[above].parent > 0 and nodes[above].start == start
    if nodes[row].depth > depth:
        if trie.text[slot_of(trie, nodes[row].start + depth)] <= 0:
            nodes[row].depth = depth
        elif ours and nodes[above].count == nodes[row].count + 1:
            lengthen(trie, above)
            return above
        else:
            row = split(trie, row, depth)
    _visit(trie, row, start)
    if ours and nodes[above].count == nodes[row].count:
        join(trie, above)
    return row


@kernel
def write_text(arrays: Plain, root: int, text: IntArray, first_new: int, may_forget: bool, scratch: IntArray) -> int:
    """Insert text[first_new:] at the head of the ring, directly after text[:first_new], which the ring holds already.

    Returns the number of tokens inserted: fewer than all if more memory is needed, or if text[:first_new] was forgotten
    meanwhile. scratch: [2, branch_length + 1].
    """
    trie = TrieArrays(*arrays)
    state = trie.state[0]
    longest = state.branch_length
    # ends[k]: the node where the last k tokens end, 0 where they end within an edge. children[k]: its child that begins
    # with the next token. All children are found before any node changes, so that their cache misses overlap.
    ends, children = scratch[0], scratch[1]
    ends[:] = 0
    ends[0] = root
    for k in range(1, min(longest, first_new + 1)):
        row = locate(trie, root, text, first_new - k, first_new)
        if row and trie.nodes[row].depth == k:
            ends[k] = row
    for index in range(first_new, len(text)):
        if not make_room(trie, 0, may_forget) or state.head - min(index, longest - 1) < state.oldest:
            return index - first_new
        slot = state.head % len(trie.text)
        trie.text[slot] = text[index] + 1
        _visit(trie, root, slot)
        token, num_suffixes = int64(text[index]), min(longest, index + 1)
        for k in range(num_suffixes):
            if ends[k]:
                children[k] = find_child(trie, int64(ends[k]), token)
        # From the longest suffix to the shortest, since suffix k extends the previous ends[k - 1].
        for k in range(num_suffixes, 0, -1):
            if ends[k - 1]:
                start = slot_of(trie, slot + len(trie.text) - k + 1)
                ends[k] = _extend_suffix(trie, int64(ends[k - 1]), int64(children[k - 1]), token, k, start)
            else:
                ends[k] = 0
        state.head += 1
    return len(text) - first_new


@kernel
def make_room(trie: TrieArrays, num_slots: int, may_forget: bool) -> bool:
    """Make room for num_slots slots and one more token, by forgetting if `may_forget`. Returns False if the trie needs
    more memory for them."""
    state = trie.state[0]
    # A token creates at most one node per suffix. Row 0 is unused. The slot after the newest token stays empty: it ends
    # the edges of the token's suffixes.
    while (
        state.num_nodes + state.branch_length > len(trie.nodes) - 1
        or state.head - state.oldest + num_slots + 1 > len(trie.text) - 1
    ):
        if not may_forget:
            return False
        forget_oldest(trie)
    return True


@subkernel
def forget_oldest(trie: TrieArrays) -> None:
    """Forget the oldest slot of the text, and all nodes that were last used by its suffix."""
    state = trie.state[0]
    slot = state.oldest % len(trie.text)
    value = trie.text[slot]
    trie.text[slot] = 0
    state.oldest += 1
    if value < 0:
        state.oldest_root = -value
        trie.text[slot_of(trie, slot + 1)] = 0
        state.oldest += 1
    else:
        root = state.oldest_root
        last, depth = root, 0
        # Tokens along the edges need no comparison, because only nodes that this suffix has used last are dropped.
        while value > 0 and depth < state.branch_length:
            row = find_child(trie, last, value - 1)
            if not row:
                break
            last, depth = row, int64(trie.nodes[row].depth)
            value = trie.text[slot_of(trie, slot + depth)]
        while last != root:
            node = trie.nodes[last]
            above = int64(node.parent)
            if node.start == slot and node.first_child == 0:
                drop_node(trie, last)
            last = above


@kernel
def open_sequence(trie: TrieArrays, root: int) -> None:
    """Write the header of a sequence. The caller has made room for two slots."""
    state = trie.state[0]
    trie.text[state.head % len(trie.text)] = -root
    trie.text[(state.head + 1) % len(trie.text)] = -1
    state.head += 2


@kernel
def halve_counts(trie: TrieArrays) -> None:
    """Halve all counts and drop nodes whose count becomes 0 (the pruning of arXiv 2312.12728)."""
    nodes = trie.nodes
    for row in range(1, trie.state[0].fresh):
        nodes[row].count >>= 1
    for row in range(1, trie.state[0].fresh):
        if nodes[row].parent > 0 and nodes[row].count == 0:
            drop_node(trie, row)


@kernel
def drop_namespace(trie: TrieArrays, root: int) -> None:
    """Drop a root, everything below it, and its text."""
    state, text = trie.state[0], trie.text
    owner = state.oldest_root
    if owner == root:
        state.oldest_root = 0
    position = state.oldest
    while position < state.head:
        slot = position % len(text)
        width = 1
        if text[slot] < 0:
            owner, width = int64(-text[slot]), 2
        if owner == root:
            text[slot] = 0
            text[(position + width - 1) % len(text)] = 0
        position += width
    row = int64(root)
    while True:
        while trie.nodes[row].first_child:
            row = int64(trie.nodes[row].first_child)
        above = int64(trie.nodes[row].parent)
        drop_node(trie, row)
        if row == root:
            break
        row = above

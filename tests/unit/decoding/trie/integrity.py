"""Checks a trie: links, counts, buckets, and the strings of nodes against the text."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.arrays import STATE
from pipeline.decoding.trie.insertion import MAX_COUNT
from pipeline.decoding.trie.nodes import NUM_FREQUENT
from pipeline.decoding.trie.text_trie import PRUNED


class Node(NamedTuple):
    parent: int
    token: int
    depth: int
    count: int
    start: int
    first_child: int
    next: int
    previous: int


def check(trie: Trie) -> None:
    """Raise AssertionError for the first fault found."""
    arrays, roots = trie.arrays, set(trie.roots.values())
    free, fresh, head, oldest, oldest_root, num_nodes, branch_length = (
        int(arrays.state[name][0]) for name in STATE.names
    )
    nodes, text = [Node(*row) for row in arrays.nodes[:fresh].tolist()], arrays.text.tolist()
    assert 0 <= oldest <= head <= oldest + len(text)
    assert not any(text[position % len(text)] for position in range(head, oldest + len(text))), "slots beside the text"
    used = {row for row in range(1, fresh) if nodes[row].parent >= 0}
    assert len(used) == num_nodes
    assert {row for row in used if not nodes[row].parent} == roots
    assert used | set(_chain(free, nodes)) == set(range(1, fresh))

    reached = set(roots)
    for row in used:
        children = _chain(nodes[row].first_child, nodes)
        assert not reached & set(children)
        reached.update(children)
        _check_children(row, children, nodes)
        if row not in roots:
            _check_strings(row, nodes, text, oldest, head, branch_length)
    assert reached == used

    found: list[int] = []
    for row in arrays.buckets.tolist():
        while row and len(found) <= num_nodes:
            found.append(row)
            row = int(arrays.bucket_next[row])
    assert sorted(found) == sorted(used)

    assert oldest_root in (0, PRUNED, *roots)
    position = oldest
    while position < head:
        value, after = text[position % len(text)], text[(position + 1) % len(text)]
        if value < 0:
            assert after == -1
            assert -value in (PRUNED, *roots)
        position += 2 if value < 0 else 1
    assert position == head


def _chain(row: int, nodes: list[Node]) -> list[int]:
    """The rows from one on that `next` links."""
    rows: list[int] = []
    while row:
        rows.append(row)
        assert len(rows) < len(nodes)
        row = nodes[row].next
    return rows


def _check_children(row: int, children: list[int], nodes: list[Node]) -> None:
    counts = [nodes[child].count for child in children]
    assert sum(counts) <= nodes[row].count or nodes[row].count == MAX_COUNT
    assert all(nodes[child].parent == row for child in children)
    assert [nodes[child].previous for child in children[1:]] == children[:-1]
    note = nodes[children[0]].previous if children else 0  # see `nodes.link`
    if note:
        assert note == -children[NUM_FREQUENT - 1]
        assert counts[:NUM_FREQUENT] == sorted(counts[:NUM_FREQUENT], reverse=True)


def _check_strings(row: int, nodes: list[Node], text: list[int], oldest: int, head: int, branch_length: int) -> None:
    node, above = nodes[row], nodes[nodes[row].parent]
    assert above.parent >= 0
    assert above.depth < node.depth <= branch_length
    assert 1 <= node.count <= above.count
    assert (node.start - oldest) % len(text) < head - oldest
    path, path_above = ([text[(each.start + at) % len(text)] for at in range(each.depth)] for each in (node, above))
    assert path[: above.depth] == path_above
    assert path[above.depth] == node.token + 1
    # Only the edge of a single occurrence may extend beyond the text.
    assert min(path) > 0 or (node.depth == branch_length and not node.first_child)

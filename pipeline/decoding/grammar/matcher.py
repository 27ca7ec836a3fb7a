"""State of one output in its grammar: permitted tokens, forced tokens, and the permitted part of a draft tree."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from pipeline.decoding.grammar.masks import TokenMask
from pipeline.decoding.tree import EMPTY_TREE, ROOT, DraftTree, children_of, limit_tree
from pipeline.errors import RequestError

_NO_CHILDREN: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Ends:
    """End tokens of an output with a grammar. end_id: llguidance's. end_ids: the request's, permitted exactly where the
    output matches the grammar. Where only they are permitted, one of them is forced: end_id if it is among them, else
    the smallest."""

    end_id: int
    end_ids: frozenset[int]


class Matcher:
    """The state of one output. Not thread safe.

    An error of llguidance is permanent. It affects a state and all copies of its template, because they share the
    lexer's cache. An error caused by a draft or by another request must not end this one. So after an error the state
    is rebuilt from the grammar and the output's tokens, and only an error of the rebuilt state counts."""

    def __init__(self, template: LLMatcher, vocab_size: int, ends: Ends, renew: Callable[[], LLMatcher]) -> None:
        """template: a matcher at the start of the grammar; it is copied. renew: compiles a new one."""
        self._renew = renew
        self._state = template.deep_copy()
        self._num_words = -(-vocab_size // 32)
        self._ends = ends
        self.token_ids: list[int] = []

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advance by token_ids; tokens after an end token are ignored. Raises RequestError if the grammar does not
        permit them."""
        for token in token_ids:
            if token in self._ends.end_ids:
                return
            if not self._takes(token):
                # Another copy of the template may have met a limit. This state then refuses tokens without an error.
                self._restart()
                if not self._takes(token):
                    where = f"output token {len(self.token_ids)}"
                    if self._state.is_error():
                        reason = f"the grammar is too large for the parser at {where}{_reason(self._state)}"
                        raise RequestError(f"{reason}; send one with fewer optional properties or alternatives")
                    raise RequestError(f"{where} is {token}, which the grammar does not permit there")
            self.token_ids.append(token)

    @property
    def end_ids(self) -> frozenset[int]:
        return self._ends.end_ids

    @property
    def is_complete(self) -> bool:
        """Whether only an end token may follow."""
        return bool(self._state.is_stopped() and not self._state.is_error())

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far matches the grammar."""
        return bool(self._state.is_accepting() and not self._state.is_error())

    def forced(self, limit: int) -> list[int]:
        """The next tokens that the grammar forces, at most limit; including the end token if the output is then
        complete."""
        if self._state.is_stopped():
            return [self._end()][:limit]
        # An end token within the forced text is not permitted there, so the forced text ends before it.
        ends = self._ends.end_ids
        tokens = list(takewhile(lambda token: token not in ends, self._state.compute_ff_tokens()[:limit]))
        if tokens and len(tokens) < limit:
            num_consumed = self._state.try_consume_tokens(tokens)
            if num_consumed == len(tokens) and self._state.is_stopped():
                tokens.append(self._end())
            self._state.rollback(num_consumed)
            self._recover()
        return tokens

    def mask_after(self, path: Sequence[int]) -> TokenMask:
        """The mask after the output and a path of permitted draft tokens. Raises RequestError if it is empty."""
        self._recover()
        mask = self._mask_of_path(path)
        if mask is None:
            self._restart()
            mask = self._mask_of_path(path)
        if mask is None:
            raise RequestError(f"the grammar permits no token after the output so far{_reason(self._state)}")
        return mask

    def masks_of(
        self, tokens: Sequence[int], children: Mapping[int, Mapping[int, int]]
    ) -> Generator[tuple[int, TokenMask], None, None]:
        """Yield node (`ROOT` first) and mask, for every node of a tree that the grammar permits. The state is restored
        when the generator ends or is closed."""
        depth = 0
        # Nodes to visit; None stands for a rollback of one token.
        todo: list[int | None] = [ROOT]
        try:
            while todo:
                node = todo.pop()
                if node is None:
                    self._state.rollback(1)
                    depth -= 1
                    continue
                if node != ROOT:
                    token = tokens[node]
                    if token in self._ends.end_ids or self._state.validate_tokens([token]) != 1:
                        continue
                    self._state.consume_token(token)
                    depth += 1
                    todo.append(None)
                mask = self._mask()
                if mask is None:
                    return
                yield node, mask
                todo += reversed(list(children.get(node, _NO_CHILDREN).values()))
        finally:
            if not self._state.is_error():
                self._state.rollback(depth)
            self._recover()

    def guided(self, tree: DraftTree, max_nodes: int, max_depth: int) -> DraftTree:
        """The part of a draft tree that the grammar permits, with forced tokens added. An added node has the
        probability of its parent and source -1. Fixed nodes of a window are kept, because they are useful only
        together."""
        growth, state = _Guided(tree, max_depth), self._state
        todo: list[_Visit | None] = [*self._visits(growth, ROOT, ROOT, 0)]  # None stands for a rollback of one token
        while todo:
            visit = todo.pop()
            if visit is None:
                state.rollback(1)
            elif visit.token in self._ends.end_ids:
                if visit.is_forced or self.is_accepting:
                    growth.add(visit.old, visit.above, visit.token)
            elif visit.is_forced or state.validate_tokens([visit.token]) == 1:
                if not state.consume_token(visit.token):
                    state.rollback(visit.depth)
                    break
                node = growth.add(visit.old, visit.above, visit.token)
                todo += [None, *self._visits(growth, visit.old, node, visit.depth + 1)]
        self._recover()
        return limit_tree(growth.tree(), max_nodes, max(max_depth, len(tree)))

    def _visits(self, growth: _Guided, old: int | None, above: int, depth: int) -> list[_Visit]:
        """The visits below node `above` of growth, last first. old: the same node in the drafts, if it is one."""
        if depth >= growth.max_depth:
            return []
        drafts = growth.children.get(old, _NO_CHILDREN) if old is not None else _NO_CHILDREN
        forced = [self._end()] if self.is_complete else self._state.compute_ff_tokens()[:1]
        visits = [_Visit(drafts.get(token), above, token, depth, bool(forced)) for token in forced or drafts]
        return visits[::-1]

    def _mask_of_path(self, path: Sequence[int]) -> TokenMask | None:
        """None if the state refuses a token of the path or every token after it, or has an error."""
        if self._state.try_consume_tokens(list(path)) < len(path):
            return None
        mask = self._mask()
        if mask is not None:
            self._state.rollback(len(path))
        return mask

    def _mask(self) -> TokenMask | None:
        words = np.empty(self._num_words, np.int32)
        self._state.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._state.is_error():
            return None
        bits, end_id = words.view(np.uint32), self._ends.end_id
        may_end = (int(bits[end_id // 32]) >> (end_id % 32)) & 1
        for token in {end_id, *self._ends.end_ids}:
            bits[token // 32] &= ~_bit(token)
        if may_end:
            # If nothing else may follow, the end is forced, so it is a single token.
            for token in self._ends.end_ids if words.any() else [self._end()]:
                bits[token // 32] |= _bit(token)
        return TokenMask(words) if words.any() else None

    def _end(self) -> int:
        ends = self._ends
        return ends.end_id if ends.end_id in ends.end_ids else min(ends.end_ids)

    def _takes(self, token: int) -> bool:
        return bool(self._state.validate_tokens([token]) == 1 and self._state.consume_token(token))

    def _recover(self) -> None:
        if self._state.is_error():
            self._restart()

    def _restart(self) -> None:
        self._state = self._renew()
        self._state.consume_tokens(self.token_ids)


class _Visit(NamedTuple):
    """A token to add to a tree under construction, if the grammar permits it. old: its node in the drafts, if it is
    one. above: its parent in the new tree, which is `depth` tokens below the root. is_forced: whether the grammar
    forces it."""

    old: int | None
    above: int
    token: int
    depth: int
    is_forced: bool


class _Guided:
    """A tree under construction: the fixed nodes of `drafts`, then the added nodes."""

    def __init__(self, drafts: DraftTree, max_depth: int) -> None:
        self.max_depth = max_depth
        self.children = children_of(drafts)
        self._num_fixed = drafts.num_fixed
        probabilities = np.ones(len(drafts)) if drafts.probabilities is None else drafts.probabilities
        sources = np.full(len(drafts), -1) if drafts.sources is None else drafts.sources
        columns = (drafts.token_ids, drafts.parents, probabilities, sources)
        self._drafts = list(zip(*(column.tolist() for column in columns), strict=True))
        self._nodes = self._drafts[: drafts.num_fixed]

    def add(self, old: int | None, parent: int, token: int) -> int:
        """Return the index of a node below `parent`, which is added unless it is a fixed node. old: index of the node
        among the drafts, whose probability and source it keeps; None for a token that is not a draft."""
        if old is not None and old < self._num_fixed:
            return old
        above = 1.0 if parent == ROOT else self._nodes[parent][2]
        probability, source = (above, -1) if old is None else self._drafts[old][2:]
        self._nodes.append((token, parent, probability, source))
        return len(self._nodes) - 1

    def tree(self) -> DraftTree:
        if not self._nodes:
            return EMPTY_TREE
        token_ids, parents, probabilities, sources = zip(*self._nodes, strict=True)
        return DraftTree(
            np.asarray(token_ids, np.int32),
            np.asarray(parents, np.int32),
            np.asarray(probabilities, np.float32),
            np.asarray(sources, np.int32),
            self._num_fixed,
        )


def _bit(token: int) -> np.uint32:
    return np.uint32(1 << (token % 32))


def _reason(state: LLMatcher) -> str:
    error = state.get_error().splitlines() if state.is_error() else []
    return f": {error[0]}" if error else ""

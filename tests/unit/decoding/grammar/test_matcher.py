"""The matcher on trees: dropped nodes, added nodes, masks of nodes, and errors below the root."""

from __future__ import annotations

import json
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.masks import TokenMask, TreeMasks
from pipeline.decoding.grammar.matcher import Ends, Matcher
from pipeline.decoding.tree import ROOT, DraftTree, chain, children_of, path_to, tree_from_lists
from pipeline.errors import RequestError
from tests.grammars import END, STOP, TOKENS, VOCAB_SIZE, compiler, spelled, vocabulary


def matcher_of(text: str, kind: str = "regex", end_ids: frozenset[int] = frozenset({END})) -> Matcher:
    return compiler().matcher(Guide(kind, text), end_ids).result()


def ids(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


def permitted(mask: TokenMask) -> set[str]:
    return {TOKENS[token] for token in range(VOCAB_SIZE) if mask.permits(token)}


def test_forbidden_drafts_are_cut_with_all_that_hangs_below_them() -> None:
    #            a        x     b     2        (below a)  b   1
    tree = tree_from_lists(ids("a", "x", "b", "2", "b"), [-1, -1, 0, 1, 2], [0.5, 0.4, 0.3, 0.2, 0.1])
    guided = matcher_of("[ab]+").guided(tree, 10, 10)
    assert [TOKENS[token] for token in guided.token_ids] == ["a", "b", "b"]
    assert guided.parents.tolist() == [-1, 0, 1]
    assert guided.probabilities is not None
    assert guided.probabilities.tolist() == pytest.approx([0.5, 0.3, 0.1])


def test_forced_tokens_are_added_where_the_drafts_end_and_replace_what_is_forbidden() -> None:
    matcher = matcher_of(
        '{"type": "object", "properties": {"aba": {"enum": [1, 2]}}, "required": ["aba"]}', "json_schema"
    )
    nothing = tree_from_lists([], [])
    assert "".join(TOKENS[token] for token in matcher.guided(nothing, 10, 10).token_ids) == '{"aba":'
    wrong = tree_from_lists(ids("x", "a"), [-1, -1], [0.9, 0.8])
    guided = matcher.guided(wrong, 2, 10)
    assert [TOKENS[token] for token in guided.token_ids] == ['{"', "aba"]
    assert guided.sources is not None
    assert guided.sources.tolist() == [-1, -1]


def test_a_tree_keeps_its_bounds_and_its_window() -> None:
    window = DraftTree(
        np.asarray(ids("x", "1", "a"), np.int32),
        np.asarray([-1, 0, -1], np.int32),
        np.full(3, 0.5, np.float32),
        None,
        2,
    )
    guided = matcher_of("abab(ab)*").guided(window, 4, 3)
    assert guided.num_fixed == 2
    assert guided.token_ids[:2].tolist() == ids("x", "1")
    assert len(guided) <= 4


def test_a_chain_of_any_length_is_guided() -> None:
    """One of a thousand tokens ended all running requests with a RecursionError."""
    guided = matcher_of("[ab]+").guided(chain(ids("a", "b") * 1000), 2000, 2000)
    assert len(guided) == 2000


def test_the_end_token_is_forced_where_the_output_is_complete() -> None:
    matcher = matcher_of("ab")
    assert matcher.forced(9) == [*ids("ab"), END][: len(matcher.forced(9))]
    matcher.consume(ids("ab"))
    assert matcher.is_complete
    assert matcher.forced(9) == [END]
    assert matcher.mask_after([]).only == END
    several = matcher_of("ab", end_ids=frozenset({END, STOP}))
    whole = several.forced(9)
    assert whole[-1] == END
    assert several.forced(len(whole) - 1) == whole[:-1]
    other = matcher_of("ab", end_ids=frozenset({STOP}))
    assert other.forced(9)[-1] == STOP


def test_every_end_token_may_come_where_the_output_matches_and_nowhere_else() -> None:
    matcher = matcher_of("a+", end_ids=frozenset({END, STOP}))
    assert permitted(matcher.mask_after([])) == {"a"}
    assert permitted(matcher.mask_after(ids("a"))) == {"a", "<end>", "<stop>"}


@pytest.mark.parametrize("num_more", [12, 42])
def test_end_tokens_may_be_in_any_word_of_a_mask(num_more: int) -> None:
    """A word has 32 bits. The end token is 32 or 62, and the vocabulary has 36 or 66 tokens."""
    size, ends = VOCAB_SIZE + num_more, (END + num_more, STOP + num_more)
    tokenizer = vocabulary(*(f"<{number}>" for number in range(num_more))).tokenizer
    template = LLMatcher(tokenizer, LLMatcher.grammar_from_regex("a+"))
    matcher = Matcher(template, size, Ends(ends[0], frozenset(ends)), lambda: template)
    for path, expected in (([], ids("a")), (ids("a"), [*ids("a"), *ends])):
        mask = matcher.mask_after(path)
        assert [token for token in range(size) if mask.permits(token)] == expected


def test_consuming_what_the_grammar_forbids_is_an_error() -> None:
    with pytest.raises(RequestError, match=r"output token 1 is .* does not permit"):
        matcher_of("ab").consume(ids("a", "x"))


grown = st.lists(st.tuples(st.integers(0, VOCAB_SIZE - 1), st.floats(0, 1)), max_size=14)


@settings(max_examples=60)
@given(grown, st.sampled_from(["[ab]+x1?", "(ab|x1|21)*", "(a|b|x){1,4}", "abab(12)*"]))
def test_masks_of_a_tree_are_those_of_a_fresh_matcher_on_each_path(
    nodes: list[tuple[int, float]], pattern: str
) -> None:
    tokens = [token for token, _ in nodes]
    parents = [int(place * (index + 1)) - 1 for index, (_, place) in enumerate(nodes)]
    parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
    matcher = matcher_of(pattern)
    tree = matcher.guided(tree_from_lists(tokens, parents), 20, 20)
    children = children_of(tree)
    masks = TreeMasks(matcher, tree)
    masks.finish()
    found = dict(matcher.masks_of(tree.token_ids.tolist(), children))
    for node in (ROOT, *range(len(tree))):
        path = [] if node == ROOT else tree.token_ids[path_to(tree, node)].tolist()
        if END in path:
            assert node not in children | found
            continue
        fresh = matcher_of(pattern)
        fresh.consume(path)
        expected = permitted(fresh.mask_after([]))
        assert permitted(masks.at(node)) == permitted(found[node]) == expected
    assert matcher.token_ids == []


def test_masks_below_a_forbidden_node_are_left_out_and_likely_nodes_come_first() -> None:
    #                           a    (x below a,  b below x)  b    2 below b   ab
    tree = tree_from_lists(ids("a", "x", "b", "b", "2", "ab"), [-1, 0, 1, -1, 3, -1])
    matcher = matcher_of("[ab]+")
    before = permitted(matcher.mask_after([]))
    arguments = tree.token_ids.tolist(), children_of(tree)
    assert [node for node, _ in matcher.masks_of(*arguments)] == [ROOT, 0, 3, 5]
    for count in range(1, 4):  # the pass ends before all masks are computed
        masks = matcher.masks_of(*arguments)
        for _ in range(count):
            next(masks)
        masks.close()
        assert permitted(matcher.mask_after([])) == before


def test_drafts_may_end_where_the_output_matches() -> None:
    matcher = matcher_of("(ab)+")
    assert matcher.guided(chain([END]), 9, 1).token_ids.tolist() != [END]
    assert matcher.guided(chain([*ids("ab"), END]), 9, 9).token_ids.tolist() == [*ids("ab"), END]
    matcher.consume([*ids("ab"), END, *ids("x")])  # tokens after the end do not count
    assert matcher.token_ids == ids("ab")
    assert matcher.guided(chain([END]), 9, 1).token_ids.tolist() == [END]


def test_tokens_are_forced_up_to_a_choice_and_again_until_they_are_consumed() -> None:
    matcher = matcher_of('"x(a|2)')
    tokens = matcher.forced(9)
    assert spelled(tokens) == '"x'
    assert (matcher.forced(1), matcher.forced(9)) == (tokens[:1], tokens)
    matcher.consume(tokens)
    assert permitted(matcher.mask_after([])) == {"a", "2"}


def test_permitted_nodes_of_a_window_are_there_once() -> None:
    tokens, parents = np.asarray(ids("a", "b", "a"), np.int32), np.asarray([-1, 0, 1], np.int32)
    guided = matcher_of("[ab]+").guided(DraftTree(tokens, parents, None, None, 2), 9, 9)
    assert (guided.token_ids.tolist(), guided.parents.tolist()) == (tokens.tolist(), parents.tolist())
    assert guided.sources is not None
    assert guided.sources.tolist() == [-1, -1, -1]


def limited_matchers(max_lexer_states: int, count: int) -> list[Matcher]:
    """Matchers of one template, whose lexer has a limited number of states."""
    limits = LLParserLimits(max_lexer_states=max_lexer_states)
    grammar = LLMatcher.grammar_from_regex("(a|b)*a(a|b){6}")

    def new() -> LLMatcher:
        return LLMatcher(vocabulary().tokenizer, grammar, limits=limits, log_level=0)

    template = new()
    return [Matcher(template, VOCAB_SIZE, Ends(END, frozenset({END})), new) for _ in range(count)]


def test_an_error_at_a_draft_does_not_end_the_request() -> None:
    (matcher,) = limited_matchers(40, 1)
    path = ids("a", "b", "a", "a", "b", "b", "a", "b")
    found = dict(matcher.masks_of(path, children_of(chain(path))))
    assert 0 < len(found) < len(path)
    assert None not in found.values()
    masks = TreeMasks(matcher, chain(path))
    masks.finish()
    assert matcher.token_ids == []
    assert permitted(masks.at(ROOT)) == permitted(matcher.mask_after([])) == {"a", "b", "ab", "aba", "bb"}
    matcher.consume(ids("a"))
    assert permitted(matcher.mask_after(ids("b"))) == {"a", "b", "ab", "aba", "bb"}


def test_an_error_of_another_output_of_the_grammar_does_not_end_the_request() -> None:
    matcher, other = limited_matchers(40, 2)
    path = ids("a", "b", "a", "a", "b", "b", "a", "b")
    assert matcher.mask_after([]).permits(path[0])
    for count in range(len(path)):
        other.mask_after(path[:count])
    matcher.consume(path[:1])
    assert matcher.token_ids == path[:1]
    assert permitted(matcher.mask_after([])) == {"a", "b", "ab", "aba", "bb"}


def test_a_state_that_refuses_tokens_without_an_error_loses_none_of_the_output() -> None:
    """As a copy of a template does after another copy has met a limit."""
    matcher = matcher_of('ab"x(a|2)x')
    matcher.consume(ids("a", "b"))
    refusing = Mock(wraps=matcher._state)
    refusing.try_consume_tokens = lambda tokens: 0
    matcher._state = refusing
    assert spelled(matcher.forced(9)) == '"x'
    assert permitted(matcher.mask_after([])) == {'"'}
    assert permitted(matcher.mask_after(ids('"', "x", "a"))) == {"x"}
    matcher.consume(ids('"', "x", "2", "x"))


def test_a_grammar_that_is_too_large_for_its_first_token_is_not_said_to_forbid_it() -> None:
    names = [[f"{first}{number}" for number in range(400)] for first in "ab"]
    schema = {"anyOf": [{"type": "object", "properties": {name: {"const": 1} for name in each}} for each in names]}
    with pytest.raises(RequestError, match=r"too large for the parser at output token 0: .* fewer optional"):
        matcher_of(json.dumps(schema), "json_schema").consume(ids('{"'))


def test_an_output_that_the_grammar_cannot_follow_ends_with_a_sentence() -> None:
    with pytest.raises(RequestError, match="the grammar permits no token after the output so far: lexer error"):
        limited_matchers(12, 1)[0].mask_after([])

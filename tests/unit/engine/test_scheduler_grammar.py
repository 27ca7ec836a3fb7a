"""Requests with a grammar against a plain loop that masks every token: random grammars, drafts and batches."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.request import FinishReason, SamplingParams
from pipeline.engine.submission import Submission
from pipeline.errors import RequestError
from tests.fakes import HostileSource, make_request, plain_decode
from tests.grammars import END, STOP, TOKENS, VOCAB_SIZE, spelled
from tests.unit.engine.grammar_requests import OracleSource, make_scheduler, plain, regex, schema

regexes = st.recursive(
    st.sampled_from(["a", "b", "ab", "x1", "12", r"\{\"", "[ab]", "[ab12x]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,4}"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)
schemas = st.recursive(
    st.sampled_from(
        [{"enum": [1, 2, 21]}, {"const": "ab"}, {"type": "string", "maxLength": 3}, {"enum": ["a", "aba", "x"]}]
    ),
    lambda inner: st.one_of(
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 3}),
        st.tuples(inner, inner).map(
            lambda two: {
                "type": "object",
                "properties": {"a": two[0], "bb": two[1]},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=4,
)
guides = st.one_of(
    regexes.map(regex),
    schemas.map(schema),
    st.lists(st.sampled_from(["ab", "a", "bb", "x12", '{"a":1}', "abx"]), min_size=1, max_size=4, unique=True).map(
        lambda words: Guide("choice", json.dumps(words))
    ),
    st.sampled_from(
        [
            Guide("ebnf_grammar", 'root ::= "a" root "b" | "x"'),
            Guide("ebnf_grammar", 'start: pair ("," pair)*\npair: "{" /[ab]+/ ":" /[12]+/ "}"'),
        ]
    ),
)
sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    bad_words=st.sampled_from([(), ((10,), (12, 12))]),
    seed=st.integers(0, 3),
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
            st.integers(1, 30),
            sampling_params,
            st.sampled_from(["none", "trie", "hybrid"]),
            st.one_of(st.none(), guides, guides, guides),
            st.sampled_from([frozenset({END}), frozenset({STOP}), frozenset({END, STOP})]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 100),
    st.booleans(),
)
def test_any_grammar_with_any_drafts_gives_what_masking_token_by_token_gives(
    entries: list[tuple[list[int], int, SamplingParams, str, Guide | None, frozenset[int], int]],
    seed: int,
    hostile: bool,
) -> None:
    requests = [
        make_request(
            prompt,
            length,
            sampling=sampling,
            end_ids=end_ids,
            stop_sequences=((13, 14),),
            min_new_tokens=min(minimum, length),
            guide=guide,
        )
        for prompt, length, sampling, _, guide, end_ids, minimum in entries
    ]
    expected = [plain_decode(request) if request.guide is None else plain(request) for request in requests]
    outputs = {request.request_id: output for request, output in zip(requests, expected, strict=True)}
    source = HostileSource(seed) if hostile else OracleSource(outputs, seed)
    strategies = [entry[3] for entry in entries]
    scheduler = make_scheduler(source)
    results = scheduler.run(
        [Submission(request, strategy) for request, strategy in zip(requests, strategies, strict=True)]
    )
    assert [result.output_ids for result in results] == expected
    for request, result in zip(requests, results, strict=True):
        is_whole = result.finish_reason is FinishReason.END_TOKEN
        if is_whole and request.guide is not None and request.guide.kind == "regex":
            assert re.fullmatch(request.guide.text, spelled(result.output_ids))
    if not hostile:
        assert scheduler.drafter.failures == {"trie": 0}


def test_what_the_grammar_forces_takes_no_pass_and_is_credited_to_it() -> None:
    fixed = {"type": "object", "properties": {"aba": {"const": "abab"}}, "required": ["aba"]}
    request = make_request(guide=schema({**fixed, "additionalProperties": False}), end_ids=frozenset({END}))
    scheduler = make_scheduler(OracleSource({request.request_id: []}, 0))
    (drafted,) = scheduler.run([Submission(request, "trie")])
    (without,) = scheduler.run([Submission(request, "none")])
    assert spelled(drafted.output_ids) == '{"aba":"abab"}'
    assert drafted.output_ids == without.output_ids == plain(request)
    assert drafted.finish_reason is FinishReason.END_TOKEN
    assert drafted.statistics.num_steps == 1
    counts = drafted.statistics
    assert counts.num_forced_tokens > 0
    assert counts.accepted_by_source["grammar"] + counts.num_forced_tokens == len(drafted.output_ids) - 1
    assert 0 < counts.guide_seconds < 600
    assert without.statistics.num_steps == len(without.output_ids) - 1  # the end token is certain


def test_an_output_cut_by_length_says_so_and_one_without_end_token_ends_with_the_grammar() -> None:
    request = make_request(guide=regex("(ab){3}"), end_ids=frozenset(), max_new_tokens=20)
    (whole,) = make_scheduler().run([Submission(request, "trie")])
    (cut,) = make_scheduler().run([Submission(replace(request, max_new_tokens=2), "trie")])
    assert (spelled(whole.output_ids), whole.finish_reason) == ("ababab", FinishReason.END_TOKEN)
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.output_ids == whole.output_ids[:2]


def test_a_minimum_length_and_bad_words_give_way_to_the_grammar() -> None:
    every_letter = tuple((token,) for token in range(20))
    sampling = SamplingParams(bad_words=every_letter, temperature=1.0, seed=3)
    request = make_request(guide=regex("(a|b)12"), min_new_tokens=9, sampling=sampling, end_ids=frozenset({END}))
    (result,) = make_scheduler().run([Submission(request, "trie")])
    assert spelled(result.output_ids) in ("a12", "b12")
    assert result.output_ids == plain(request)


def test_a_request_that_goes_on_with_another_ones_output_goes_on_in_its_grammar() -> None:
    guide = regex("(ab|x1|21){4}b")
    request = make_request(guide=guide, end_ids=frozenset({END}))
    whole = plain(request)
    for count in range(1, len(whole) - 1):
        prompt = [*request.prompt_ids.tolist(), *whole[:count]]
        rest = make_request(prompt, 20 + count, guide=guide, end_ids=frozenset({END}), num_resumed_tokens=count)
        (result,) = make_scheduler().run([Submission(rest, "trie")])
        assert whole[:count] + result.output_ids == whole


def test_a_request_that_goes_on_with_another_ones_output_has_end_tokens_of_its_own() -> None:
    guide, scheduler = regex("(ab|x1|21){4}b"), make_scheduler()
    first = make_request(guide=guide, end_ids=frozenset({END}), max_new_tokens=2)
    (begun,) = scheduler.run([Submission(first, "trie")])
    prompt = [*first.prompt_ids.tolist(), *begun.output_ids]
    rest = make_request(prompt, 22, guide=guide, end_ids=frozenset({STOP}), num_resumed_tokens=2)
    (ended,) = scheduler.run([Submission(rest, "trie")])
    assert begun.output_ids + ended.output_ids == plain(replace(first, end_ids=frozenset({STOP}), max_new_tokens=22))


def test_end_tokens_outside_the_vocabulary_never_come_and_harm_no_request() -> None:
    guided = make_request(guide=regex("(ab)+x1"), end_ids=frozenset({STOP, -1, 50_256}))
    only = make_request(guide=regex("(ab)+x1"), end_ids=frozenset({50_256}))
    other = make_request(max_new_tokens=60)
    results = make_scheduler().run([Submission(request, "trie") for request in (other, guided, only)])
    assert results[0].output_ids == plain_decode(other)
    assert results[1].output_ids == plain(replace(guided, end_ids=frozenset({STOP})))
    assert results[2].output_ids == plain(replace(only, end_ids=frozenset()))


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_an_output_may_end_where_the_grammar_permits_no_further_token(strategy: str) -> None:
    # "1" is an end token, so nothing can follow "a" or "b".
    guide, end_ids = regex("(a|b)12x"), frozenset({TOKENS.index("1")})
    stops = ((TOKENS.index("a"),), (TOKENS.index("b"),))
    by_stop = make_request(guide=guide, end_ids=end_ids, stop_sequences=stops)
    by_length = make_request(guide=guide, end_ids=end_ids, max_new_tokens=1)
    outputs = {request.request_id: plain(request) for request in (by_stop, by_length)}
    scheduler = make_scheduler(OracleSource(outputs, 0))
    results = scheduler.run([Submission(request, strategy) for request in (by_stop, by_length)])
    assert [result.output_ids for result in results] == list(outputs.values())
    assert [result.finish_reason for result in results] == [FinishReason.STOP_WORDS, FinishReason.LENGTH]


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_a_grammar_does_not_force_the_text_of_an_end_token(strategy: str) -> None:
    request = make_request(guide=regex("(a|b)12x"), end_ids=frozenset({TOKENS.index("1")}))
    with pytest.raises(RequestError, match="permits no token after the output so far"):
        make_scheduler().run([Submission(request, strategy)])

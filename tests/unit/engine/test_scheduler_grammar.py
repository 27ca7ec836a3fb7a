"""Requests with a grammar against the plain loop that masks token by token: random grammars, drafts, batches."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafter import Drafter
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.decoding.log_probs import LogitsWanted, log_softmax
from pipeline.decoding.planner import FixedPlanner
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray, tree_from_lists
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from pipeline.errors import RequestError
from tests.fakes import HostileSource, TableEngine, make_request, table_logits
from tests.grammars import END, STOP, VOCAB_SIZE, compiler, plain_guided_decode, spelled, vocabulary

COMPACT = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}


class OracleSource:
    """Proposes what the output will be, with mistakes in between and beside it."""

    name = "trie"
    needs_top_k = 0

    def __init__(self, outputs: dict[str, list[int]], seed: int) -> None:
        self._outputs = outputs
        self._random = np.random.default_rng(seed)
        self._prompt_lens: dict[str, int] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._prompt_lens[request_id] = len(prompt_ids)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        rest = self._outputs[request_id][len(context) - self._prompt_lens[request_id] :]
        tokens, parents, last = [], [], -1
        for token in rest[: budget.max_depth]:
            if len(tokens) + 2 > budget.max_nodes:
                break
            if self._random.random() < 0.5:
                tokens.append(int(self._random.integers(0, VOCAB_SIZE)))
                parents.append(last)
            tokens.append(token if self._random.random() < 0.9 else int(self._random.integers(0, VOCAB_SIZE)))
            parents.append(last)
            last = len(tokens) - 1
        return tree_from_lists(tokens, parents)

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None: ...

    def stop(self, request_id: str) -> None: ...


def make_scheduler(source: object | None = None) -> Scheduler:
    return Scheduler(
        TableEngine(),
        Drafter([source or HostileSource()], VOCAB_SIZE),  # type: ignore[list-item]
        FixedPlanner(),
        default_budget=DraftBudget(10, 6),
        max_queue_size=64,
        prefill_chunk=16,
        compiler=compiler(),
    )


def grammar_of(guide: Guide) -> str:
    return grammar_text(guide, vocabulary().special_tokens)


def plain(request: GenerationRequest) -> list[int]:
    assert request.guide is not None
    return plain_guided_decode(request, grammar_of(request.guide), table_logits)


def regex(text: str) -> Guide:
    return Guide("regex", text)


def schema(value: object) -> Guide:
    return Guide("json_schema", json.dumps({"x-guidance": COMPACT, **value}))  # type: ignore[dict-item]


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
    from tests.fakes import plain_decode

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
    assert drafted.statistics.accepted_by_source["grammar"] + drafted.statistics.num_forced_tokens > 3
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


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide("xml", "<a/>"), "the guide type is 'xml'; it must be one of json, json_schema"),
        (regex(""), "the guide of type regex is empty"),
        (regex("a" * (1 << 19)), "has 524288 bytes; at most 262144"),
        (Guide("json_schema", "{"), "not valid JSON"),
        (Guide("json_schema", "[1]"), "is a JSON list; it must be a dict"),
        (Guide("choice", "[]"), "list of strings that are not empty"),
        (Guide("structural_tag", "{}"), "structures"),
        (schema({"type": "strin"}), "Invalid type: strin"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable schema"),
        (schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "requires itself"),
        (regex("(a"), "cannot be used"),
        (Guide("ebnf_grammar", "start: start"), "permits no output"),
        (Guide("ebnf_grammar", "root ::= nothing"), "cannot be used|neither GBNF nor Lark"),
    ],
)
def test_a_guide_that_cannot_be_used_is_refused_in_one_sentence(guide: Guide, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        make_scheduler().run([Submission(make_request(guide=guide))])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_grammar_that_crashes_its_compiler_is_refused() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(6500)} | {"a6500": {"const": "ab"}}
    with pytest.raises(RequestError, match="nests too deeply"):
        make_scheduler().run([Submission(make_request(guide=schema({"$ref": "#/$defs/a0", "$defs": chain})))])


@pytest.fixture
def slow() -> Iterator[tuple[Scheduler, threading.Event]]:
    """A scheduler that serves in a thread, and whose compiler waits for an event."""
    event = threading.Event()

    def load() -> object:
        assert event.wait(10)
        return vocabulary()

    scheduler = Scheduler(
        TableEngine(),
        Drafter([HostileSource()], VOCAB_SIZE),
        FixedPlanner(),
        default_budget=DraftBudget(10, 6),
        max_queue_size=64,
        prefill_chunk=16,
        compiler=Compiler(load),  # type: ignore[arg-type]
    )
    scheduler.start()
    yield scheduler, event
    event.set()
    scheduler.close()


def test_no_request_waits_for_another_ones_grammar(slow: tuple[Scheduler, threading.Event]) -> None:
    scheduler, may_compile = slow
    guided, cancelled, other = make_request(guide=regex("(ab)+")), make_request(guide=regex("x+")), make_request()
    ended: dict[str, StepEvent] = {}
    finished = {request.request_id: threading.Event() for request in (guided, cancelled, other)}

    def on_event(event: StepEvent) -> None:
        if event.done:
            ended[event.request_id] = event
            finished[event.request_id].set()

    for request in (guided, cancelled, other):
        scheduler.submit(Submission(request, "trie"), on_event)
    assert finished[other.request_id].wait(10)
    scheduler.cancel(cancelled.request_id)
    assert finished[cancelled.request_id].wait(10)
    assert guided.request_id not in ended
    assert ended[cancelled.request_id].finish_reason is FinishReason.CANCELLED
    may_compile.set()
    assert finished[guided.request_id].wait(10)
    assert ended[guided.request_id].error is None


@pytest.mark.parametrize("guide", [None, regex("(ab|x1|21|12){6}")])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_the_targets_own_and_the_same_with_drafts(
    guide: Guide | None, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, repetition_penalty=1.2)
    request = make_request(prompt=[4, 5, 6, 7] * 6, sampling=sampling, guide=guide, end_ids=frozenset({END}))
    wanted = LogitsWanted(log_probs=True, num_top=3, prompt=True, generation_logits=True)
    drafted, without = (
        make_scheduler(HostileSource(broken=0.0)).run([Submission(request, strategy, wanted=wanted)])[0]
        for strategy in ("trie", "none")
    )
    assert drafted.output_ids == without.output_ids
    assert drafted.log_probs is not None
    assert without.log_probs is not None
    assert drafted.log_probs.values == without.log_probs.values
    assert drafted.log_probs.top_ids == without.log_probs.top_ids
    context = request.prompt_ids.tolist()
    for token, value, ids, top, row in zip(
        drafted.output_ids,
        drafted.log_probs.values,
        drafted.log_probs.top_ids,
        drafted.log_probs.top_values,
        drafted.log_probs.rows,
        strict=False,  # an end token has none
    ):
        logits = table_logits(context)
        assert np.array_equal(row, logits)
        assert value == log_softmax(logits)[token]
        assert ids == np.argsort(-logits, kind="stable")[:3].tolist()
        assert top == log_softmax(logits)[ids].tolist()
        context.append(token)
    assert len(drafted.log_probs.values) == len([token for token in drafted.output_ids if token != END])
    assert drafted.prompt_rows is not None
    prompt = request.prompt_ids.tolist()
    assert np.array_equal(
        np.stack(drafted.prompt_rows), np.stack([table_logits(prompt[: end + 1]) for end in range(len(prompt))])
    )

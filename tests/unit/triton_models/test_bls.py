"""`lookahead_bls` without Triton: tensors in, text out, over a table instead of a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from pipeline.decoding.trie import Trie
from pipeline.errors import BusyError
from pipeline.triton_models.bls import Bls
from pipeline.triton_models.generation import Generation
from pipeline.triton_models.sequences import TextResponse
from pipeline.triton_models.text_codec import TextCodec
from tests.fakes import make_request, plain_decode
from tests.unit.triton_models.fakes import END_ID, TableTarget, letter_codec, small_config, text_tensors

T = TypeVar("T")
PROMPTS = ("bcd", "ccddccddcc", "q", "hello")
STRATEGIES = ("none", "lookahead", "trie", "hybrid", "auto")


def make_bls(target: TableTarget | None = None, *overrides: str) -> Bls:
    return Bls(small_config(*overrides), letter_codec(), [target or TableTarget()])


async def answers_of(bls: Bls, tensors: dict[str, Any], **keywords: Any) -> list[TextResponse]:
    return [answer async for answer in bls.answer(tensors, **keywords)]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def text_of(answers: list[TextResponse]) -> str:
    return b"".join(answer.tensors["text_output"].reshape(-1)[0] for answer in answers).decode()


def statistics_of(answers: list[TextResponse]) -> dict[str, Any]:
    return json.loads(answers[-1].tensors["statistics"].reshape(-1)[0])


def expected_ids(
    text: str, max_tokens: int, end_ids: frozenset[int] = frozenset({END_ID}), min_tokens: int = 0
) -> list[int]:
    prompt = [ord(letter) - ord("a") for letter in text]
    return plain_decode(make_request(prompt, max_tokens, end_ids=end_ids, min_new_tokens=min_tokens))


def letters(ids: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in ids if token != END_ID)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_tokens_of_plain_decoding_streaming_or_not(strategy):
    bls = make_bls()
    for prompt in PROMPTS * 2:
        for stream in (False, True):
            asked = text_tensors(prompt, 40, strategy=strategy, stream=stream, return_statistics=True)
            answers = run_in(bls, asked)
            expected = expected_ids(prompt, 40)
            assert statistics_of(answers)["output_ids"] == expected
            assert text_of(answers) == letters(expected)
            assert [answer.last for answer in answers] == [False] * (len(answers) - 1) + [True]
            assert stream or len(answers) == 1


def run_in(bls: Bls, tensors: dict[str, Any], **keywords: Any) -> list[TextResponse]:
    return run(answers_of(bls, tensors, **keywords))


def test_drafts_from_earlier_output_are_accepted_and_save_steps():
    bls = make_bls()
    first = statistics_of(run_in(bls, text_tensors("bcd", 40, strategy="trie", return_statistics=True)))
    again = statistics_of(run_in(bls, text_tensors("bcd", 40, strategy="trie", return_statistics=True)))

    assert again["output_ids"] == first["output_ids"]
    assert again["num_steps"] < first["num_steps"]
    assert again["num_accepted_tokens"] > 0
    assert 0 < again["time_to_first_token_s"] < again["total_s"] < 600
    assert sum(again["acceptance_lengths"]) == len(again["output_ids"])


def test_namespaces_do_not_see_each_other():
    bls = make_bls()
    ask = {"strategy": "trie", "return_statistics": True}
    fresh = statistics_of(run_in(bls, text_tensors("bcd", 40, namespace="a", **ask)))
    other = statistics_of(run_in(bls, text_tensors("bcd", 40, namespace="b", **ask)))
    known = statistics_of(run_in(bls, text_tensors("bcd", 40, namespace="a", **ask)))

    assert other["num_steps"] == fresh["num_steps"]
    assert known["num_steps"] < fresh["num_steps"]


@pytest.mark.parametrize("share_drafts", [True, False])
def test_tenants_share_drafts_only_where_the_config_says_so(share_drafts):
    bls = make_bls(None, f"server.gateway.share_drafts={str(share_drafts).lower()}")
    ask = {"strategy": "trie", "return_statistics": True}
    first, second = (statistics_of(run_in(bls, text_tensors("bcd", 40, namespace=n, **ask))) for n in ("a/x", "b/x"))

    assert (second["num_steps"] < first["num_steps"]) == share_drafts


def test_a_right_prediction_is_accepted():
    target = TableTarget()
    bls = make_bls(target)
    text = letters(expected_ids("ccddccddcc", 30))
    asked = text_tensors("ccddccddcc", 30, strategy="trie", prediction=text, return_statistics=True)

    statistics = statistics_of(run_in(bls, asked))

    assert statistics["mean_acceptance_length"] > 4
    accepted = statistics["num_accepted_prediction_tokens"]
    assert statistics["num_steps"] + accepted == len(text) == statistics["num_prediction_tokens"]


def test_a_wrong_prediction_is_counted_as_such():
    asked = text_tensors("ccddccddcc", 30, strategy="trie", prediction="x" * 20, return_statistics=True)

    statistics = statistics_of(run_in(make_bls(), asked))

    assert statistics["num_prediction_tokens"] == 20
    assert statistics["num_accepted_prediction_tokens"] == 0


def test_min_tokens_holds_where_a_model_ends_at_several_tokens():
    """The target gets one end token; the others are banned early too, and end the output when allowed."""
    for prompt in PROMPTS:
        ends = frozenset({END_ID, *expected_ids(prompt, 40)[4:7]})
        bls = Bls(small_config(), letter_codec(ends), [TableTarget()])
        expected = expected_ids(prompt, 40, ends, 20)
        assert len(expected) >= 20
        for strategy in STRATEGIES:
            asked = text_tensors(prompt, 40, strategy=strategy, min_tokens=20, return_statistics=True)
            assert statistics_of(run_in(bls, asked))["output_ids"] == expected


@pytest.mark.parametrize("end_id", [END_ID, -1])
def test_min_tokens_holds_for_a_stop_word_that_is_a_special_token(end_id):
    for prompt in PROMPTS:
        ends = frozenset({end_id} - {-1})
        special = next(token for token in expected_ids(prompt, 40, frozenset()) if token != END_ID)
        codec = letter_codec()
        codec.special_ids = frozenset({special})
        bls = Bls(small_config(), codec, [TableTarget()])
        expected = expected_ids(prompt, 40, ends | {special}, 20)
        asked = {"end_id": end_id, "stop_words": [letters([special])], "min_tokens": 20, "return_statistics": True}
        for strategy in STRATEGIES:
            answers = run_in(bls, text_tensors(prompt, 40, strategy=strategy, **asked))
            assert statistics_of(answers)["output_ids"] == expected


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_a_stop_word_ends_the_output_is_not_shown_and_ends_the_engines_work(strategy):
    target = TableTarget()
    bls = make_bls(target)
    whole = letters(expected_ids("ccddccddcc", 40))
    word = whole[10:13]

    answers = run_in(bls, text_tensors("ccddccddcc", 40, strategy=strategy, stop_words=[word], stream=True))

    assert text_of(answers) == whole[: whole.index(word)]
    assert answers[-1].tensors["finish_reason"].tolist() == [b"stop_words"]
    assert not target.engine.held


def recurring_letter(text: str, first: int) -> str:
    """A letter that is among the first tokens of a text and among the later ones."""
    return next(letter for letter in text[first:] if letter in text[:first])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stop_word_ends_no_output_before_min_tokens(strategy):
    """As in vLLM."""
    whole = letters(expected_ids("ccddccddcc", 60, min_tokens=20))
    word = recurring_letter(whole, 20)

    answers = run_in(make_bls(), text_tensors("ccddccddcc", 60, strategy=strategy, stop_words=[word], min_tokens=20))

    assert text_of(answers) == whole[: whole.index(word, 20)]
    assert answers[-1].tensors["finish_reason"].tolist() == [b"stop_words"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_target_does_not_decode_on_behind_what_ends_the_output(strategy):
    """A stop word in the text, one that is a special token, and an end token that the target does not get."""
    output = expected_ids("ccddccddcc", 200, frozenset())
    place = next(i for i in range(12, 40) if output[i] not in (END_ID, *output[:i]))
    token = output[place]
    endings: list[tuple[TextCodec, dict[str, object], str]] = [
        (letter_codec(), {"stop_words": [letters([token])]}, "stop_words"),
        (letter_codec(), {"stop_words": [letters([token])]}, "stop_words"),
        (letter_codec(frozenset({END_ID, token})), {}, "end_token"),
    ]
    endings[1][0].special_ids = frozenset({token})
    for codec, more, reason in endings:
        if reason == "stop_words":
            more["end_id"] = -1
        target = TableTarget()
        bls = Bls(small_config(), codec, [target])
        answers = run_in(bls, text_tensors("ccddccddcc", 200, strategy=strategy, return_statistics=True, **more))
        assert statistics_of(answers)["output_ids"] == output[: place + 1]
        assert text_of(answers) == letters(output[:place])
        assert answers[-1].tensors["finish_reason"].tolist() == [reason.encode()]
        assert target.engine.num_passes <= place + 1 + 16


def test_the_input_is_echoed_only_if_asked_for():
    bls = make_bls()
    text = text_of(run_in(bls, text_tensors("bcd", 5)))

    assert text_of(run_in(bls, text_tensors("bcd", 5, exclude_input_in_output=False))) == "bcd" + text


def test_a_client_that_leaves_frees_everything():
    target = TableTarget()
    bls = make_bls(target)
    ended: list[Generation] = []

    async def leave(in_call: bool) -> None:
        answers = bls.answer(text_tensors("ccddccddcc", 40, strategy="none", stream=True), ended.append)
        await anext(answers)
        following = asyncio.ensure_future(anext(answers))
        if in_call:
            await asyncio.sleep(0)  # into the next call
            following.cancel()
        await asyncio.wait([following])
        await answers.aclose()

    run(leave(in_call=False))
    assert not target.cancelled
    run(leave(in_call=True))

    assert len(target.cancelled) == 1
    assert not target.engine.held
    assert [metrics.outcome for metrics in ended] == ["cancelled", "cancelled"]


def test_requests_beyond_the_queue_length_get_an_error():
    bls = make_bls(None, "scheduling.max_queue_size=1", "engine.max_batch_size=1")

    async def flood() -> list[Any]:
        asked = [text_tensors(prompt, 30, strategy="trie") for prompt in PROMPTS]
        return await asyncio.gather(*(answers_of(bls, tensors) for tensors in asked), return_exceptions=True)

    results = run(flood())

    # One has the engine's place, one waits.
    assert [isinstance(result, list) for result in results] == [True, True, False, False]
    assert all(isinstance(result, BusyError) for result in results[2:])


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_calls_announce_whether_more_steps_may_follow(strategy):
    target = TableTarget()

    run_in(make_bls(target), text_tensors("ccddccddcc", 40, strategy=strategy, stream=True))

    for call in target.calls if strategy == "trie" else ():
        assert bool(call["to_be_continued"]) == (call["max_steps"].item() < call["request_output_len"].item())
    continued = [bool(call["to_be_continued"]) for call in target.calls]
    assert continued[0]
    assert strategy == "trie" or not continued[-1]


def test_the_first_call_of_a_stream_ends_with_the_first_token():
    target = TableTarget()

    run_in(make_bls(target), text_tensors("ccddccddcc", 40, strategy="none", stream=True))

    assert [call["request_output_len"].item() for call in target.calls[:3]] == [1, 4, 4]


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_metrics_of_a_request_add_up(monkeypatch, strategy):
    seen: list[Generation] = []
    bls = make_bls()
    # A request must not count the tokens of the whole trie.
    monkeypatch.setattr(Trie, "statistics", property(lambda trie: pytest.fail("statistics of the trie")))

    run_in(bls, text_tensors("bcd", 20, strategy=strategy), on_end=seen.append)

    request, gauges, expected = seen[0], bls.gauges(), expected_ids("bcd", 20)
    assert request.engine.strategy == strategy
    assert sum(request.statistics.acceptance_lengths) == sum(request.step_sizes) == len(expected)
    assert len(request.step_times) == len(request.step_sizes) <= len(request.statistics.acceptance_lengths)
    assert request.num_calls >= request.num_calls_without_draft
    assert (gauges["trie_nodes"] > 0) == (strategy == "trie")
    assert gauges["draft_source_failures"] == 0

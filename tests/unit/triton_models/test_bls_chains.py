"""The BLS loop against TensorRT-LLM's contract: chains, outputs without a finish reason, limits, routing."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.strict import strict_engine
from pipeline.engine.traits import Mode
from pipeline.errors import RequestError
from pipeline.triton_models.bls import Bls
from pipeline.triton_models.text_codec import TextCodec
from tests.fakes import VOCAB_SIZE, make_request, plain_decode
from tests.unit.triton_models.fakes import END_ID, TableTarget, letter_codec, small_config, text_tensors
from tests.unit.triton_models.test_bls import expected_ids, letters, recurring_letter, run_in, statistics_of, text_of

PROMPTS = ("bcd", "ccddccddcc", "q", "hello")
STRICT = ("engine.strict_tensorrt_llm=true", "tensorrt_llm.max_external_draft_len=6")


def strict_bls(
    speculation: str, *overrides: str, codec: TextCodec | None = None, **fields: Any
) -> tuple[Bls, dict[Mode, TableTarget]]:
    """A BLS model, and its strict targets by the mode of the engine that each emulates."""
    resolved = small_config(*STRICT, f"tensorrt_llm.speculation={speculation}", *overrides)
    modes = BuildContext(resolved, None).modes
    targets = {mode: TableTarget(strict_engine(resolved, mode, VOCAB_SIZE), **fields) for mode in modes}
    return Bls(resolved, codec or letter_codec(), list(targets.values())), targets


def ids_of(bls: Bls, prompt: str, max_tokens: int, **fields: Any) -> list[int]:
    ids: list[int] = statistics_of(
        run_in(bls, text_tensors(prompt, max_tokens, return_statistics=True, **fields))
    )["output_ids"]  # fmt: skip
    return ids


@pytest.mark.parametrize(
    ("speculation", "strategies"),
    [
        ("trie", ("none", "trie", "auto")),
        ("lookahead", ("none", "lookahead", "auto")),
        ("none", ("none", "auto")),
        ("both", ("none", "trie", "lookahead", "auto")),
    ],
)
def test_every_engine_and_strategy_gives_the_tokens_of_plain_decoding(speculation, strategies):
    bls, targets = strict_bls(speculation)
    for strategy in strategies:
        for prompt in PROMPTS[:3] * 2:
            assert ids_of(bls, prompt, 60, strategy=strategy) == expected_ids(prompt, 60)
    assert not any(target.engine.held for target in targets.values())


def test_seeded_sampling_is_the_same_with_chains_and_without():
    bls, _ = strict_bls("trie")
    outputs = {
        tuple(ids_of(bls, "bcd", 40, strategy=strategy, temperature=0.9, seed=7))
        for strategy in ("none", "trie", "trie", "auto")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_target_that_drops_a_part_of_the_drafts_costs_no_token(seed, chunked):
    """What comes back may be a part of the chain although nothing has ended. With chunked context not even the counts
    need say so."""
    context = f"tensorrt_llm.enable_chunked_context={str(chunked).lower()}"
    bls, targets = strict_bls("trie", context, cut_drafts=True, silent=chunked, random=np.random.default_rng(seed))
    for prompt in PROMPTS * 3:
        assert ids_of(bls, prompt, 80, strategy="trie") == expected_ids(prompt, 80)
    assert any("draft_input_ids" in call for call in targets["trie"].calls)


def test_what_is_sent_keeps_every_rule_of_the_contract():
    """The strict target refuses what breaks a rule; here is what it cannot see."""
    bls, targets = strict_bls("trie")
    for prompt in PROMPTS * 3:
        ids_of(bls, prompt, 40, strategy="trie")

    calls = targets["trie"].calls
    with_drafts = [call for call in calls if "draft_input_ids" in call]
    assert with_drafts
    for call in with_drafts:
        num_drafts = call["draft_input_ids"].shape[1]
        assert 1 <= num_drafts <= 6
        assert call["request_output_len"].item() == num_drafts + 1
        assert "streaming" not in call
        assert call["draft_input_ids"].dtype == np.int32
    without = [call["request_output_len"].item() for call in calls if "draft_input_ids" not in call]
    assert min(without) >= 1
    assert all(call["input_ids"].shape == (1, call["input_lengths"].item()) for call in calls)


def test_chunks_without_a_draft_grow_up_to_a_limit():
    bls, targets = strict_bls("trie")
    ids_of(bls, "q", 200, strategy="trie", num_draft_tokens=0, end_id=-1)

    asked = [call["request_output_len"].item() for call in targets["trie"].calls]
    assert asked[:5] == [4, 8, 16, 16, 16]
    assert not any("draft_input_ids" in call for call in targets["trie"].calls)


@pytest.mark.parametrize("num_draft_tokens", range(9))
def test_chains_are_no_longer_than_asked_for(num_draft_tokens):
    bls, targets = strict_bls("trie")
    for _ in range(2):
        asked = text_tensors("bcd", 40, strategy="trie", num_draft_tokens=num_draft_tokens, end_id=-1)
        run_in(bls, asked)
    lengths = [call["draft_input_ids"].shape[1] for call in targets["trie"].calls if "draft_input_ids" in call]
    assert max(lengths, default=0) == min(num_draft_tokens, 6)


@pytest.mark.parametrize("num_prompt", [60, 90, 95, 99, 100])
@pytest.mark.parametrize("speculation", ["trie", "none", "lookahead"])
def test_output_reaches_the_engines_end_past_the_longest_prompt(speculation, num_prompt):
    """max_num_tokens bounds the prompt, and so how far the text can be sent again."""
    bls, targets = strict_bls(speculation, "engine.max_num_tokens=100", "engine.prefill_chunk=64")
    prompt = ("ccddccddcc" * 10)[:num_prompt]
    (target,) = targets.values()
    assert target.strict is not None
    room = target.strict.limits.usable_seq_len - num_prompt
    request = make_request([ord(letter) - ord("a") for letter in prompt], 500)
    expected = plain_decode(request)[:room]

    for _ in range(2):
        assert ids_of(bls, prompt, 500, end_id=-1) == expected
    with pytest.raises(RequestError, match="101 tokens; prompt and output may have 101"):
        ids_of(bls, "c" * 101, 5)


def test_greedy_goes_to_lookahead_and_sampling_to_the_trie_unless_the_request_says_otherwise():
    bls, targets = strict_bls("both")

    def went_to(**fields: Any) -> list[Mode]:
        before = {mode: len(target.calls) for mode, target in targets.items()}
        run_in(bls, text_tensors("bcdbcd", 8, **fields))
        return [mode for mode, target in targets.items() if len(target.calls) > before[mode]]

    assert went_to() == ["lookahead"]
    assert went_to(temperature=0.9, seed=1) == ["trie"]
    assert went_to(repetition_penalty=1.2) == ["trie"]
    assert went_to(bad_words=["w"]) == ["trie"]
    assert went_to(strategy="trie") == ["trie"]
    assert went_to(strategy="none") == ["trie"]
    assert went_to(strategy="lookahead") == ["lookahead"]


def sizes(window: int, ngram: int, candidates: int) -> dict[str, int]:
    return {
        "lookahead_window_size": window,
        "lookahead_ngram_size": ngram,
        "lookahead_verification_set_size": candidates,
    }


@pytest.mark.parametrize(
    ("fields", "prompt", "sent"),
    [
        ({}, "bcdbcd", (5, 3, 3)),
        (sizes(2, 2, 1), "bcdbcd", (2, 2, 1)),
        ({}, "b", (5, 2, 3)),  # a prompt of one token allows n-grams of two
        (sizes(5, 3, 3), "b", (5, 2, 3)),
        ({"strategy": "none"}, "bcdbcd", (1, 1, 0)),
        ({"num_draft_tokens": 0}, "bcdbcd", (1, 1, 0)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_lookahead_engine_gets_its_three_sizes_and_no_drafts(fields, prompt, sent, stream):
    bls, targets = strict_bls("lookahead")
    answers = run_in(bls, text_tensors(prompt, 40, stream=stream, end_id=-1, **fields))

    calls = targets["lookahead"].calls
    for call in calls:
        assert tuple(call[name].item() for name in sizes(0, 0, 0)) == sent
        assert all(call[name].dtype == np.int32 for name in sizes(0, 0, 0))
        assert "draft_input_ids" not in call
    assert sum(call["request_output_len"].item() for call in calls) == 40
    assert len(calls) == 1  # the stream is the engine's own
    assert (len(answers) > 2) == stream


@pytest.mark.parametrize(
    ("speculation", "wrong", "sentence"),
    [
        ("trie", {"strategy": "lookahead"}, "offers none, trie and auto"),
        ("trie", {"strategy": "hybrid"}, "offers none, trie and auto"),
        ("lookahead", {"strategy": "trie"}, "offers lookahead, none and auto"),
        ("none", {"strategy": "trie"}, "offers none and auto"),
        ("trie", sizes(2, 2, 1), "goes to an engine without lookahead decoding"),
        ("both", {"strategy": "trie"} | sizes(2, 2, 1), "strategy trie goes to an engine without lookahead"),
        ("lookahead", sizes(6, 3, 3), "no value may be larger"),
        ("lookahead", sizes(2, 1, 0), r"\(2, 1, 0\) are not possible: found .* N = 1 switches lookahead off"),
        (
            "lookahead",
            sizes(0, 2, 1),
            r"\(0, 2, 1\) are not possible: lookahead_window_size should be greater than or equal to 1",
        ),
        ("lookahead", {"lookahead_ngram_size": 2}, "belong together; send all three or none"),
        ("lookahead", {"temperature": 0.5}, "does not apply temperature"),
        ("lookahead", {"repetition_penalty": 1.1, "bad_words": ["z"]}, "does not apply repetition_penalty, bad_words"),
        ("both", {"temperature": 0.5} | sizes(2, 2, 1), "does not apply temperature"),
        ("trie", {"temperature": 0.5, "min_p": 0.1}, "min_p is 0.1"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_it_is_called(speculation, wrong, sentence):
    bls, targets = strict_bls(speculation)
    with pytest.raises(RequestError, match=sentence):
        run_in(bls, text_tensors("bcdbcd", 5, **wrong))
    assert not any(target.calls for target in targets.values())
    assert ids_of(bls, "bcdbcd", 5) == expected_ids("bcdbcd", 5)


def test_the_profiles_own_strategy_gives_way_to_what_the_engine_has():
    bls, _ = strict_bls("none", "drafting.strategy=trie")

    assert ids_of(bls, "bcd", 8) == expected_ids("bcd", 8)


def test_an_end_token_inside_a_chain_ends_the_output():
    bls, _ = strict_bls("trie")
    prompt = "ccddccddcc"
    whole = ids_of(bls, prompt, 40, end_id=-1)
    for end_id in set(whole[2:12]) - {END_ID}:
        for _ in range(2):
            expected = plain_decode(make_request([2, 2, 3, 3] * 2 + [2, 2], 40, end_ids=frozenset({end_id})))
            assert ids_of(bls, prompt, 40, strategy="trie", end_id=end_id) == expected


def test_counts_are_the_targets_and_add_up_over_calls():
    bls, targets = strict_bls("trie")
    run_in(bls, text_tensors("bcd", 40, strategy="trie", end_id=-1))
    targets["trie"].calls.clear()
    asked = text_tensors("bcd", 40, strategy="trie", end_id=-1, return_statistics=True, return_perf_metrics=True)
    answers = run_in(bls, asked)

    statistics = statistics_of(answers)
    assert sum(statistics["acceptance_lengths"]) == 40
    assert statistics["num_accepted_tokens"] > 0
    assert answers[-1].tensors["total_draft_tokens"].item() == statistics["num_draft_tokens"]
    assert statistics["num_steps"] + statistics["num_accepted_tokens"] == 40
    drafted = sum("draft_input_ids" in call for call in targets["trie"].calls)
    assert 0 < statistics["num_drafted_steps"] == drafted < statistics["num_steps"]


def test_streamed_counts_are_those_of_the_whole_call():
    bls, _ = strict_bls("lookahead")
    statistics = statistics_of(run_in(bls, text_tensors("bcdbcd", 40, end_id=-1, stream=True, return_statistics=True)))

    assert statistics["num_steps"] + statistics["num_accepted_tokens"] == 40
    assert statistics["num_draft_tokens"] <= statistics["num_steps"] * 15


def test_many_requests_at_once_get_what_they_get_alone():
    bls, _ = strict_bls("both")

    async def together() -> list[list[Any]]:
        async def one(prompt: str, strategy: str) -> list[Any]:
            asked = text_tensors(prompt, 30, strategy=strategy, return_statistics=True)
            return [answer async for answer in bls.answer(asked)]

        return await asyncio.gather(*(one(p, s) for p in PROMPTS[:2] for s in ("trie", "lookahead", "none") * 3))

    results = asyncio.run(together())
    for number, answers in enumerate(results):
        assert statistics_of(answers)["output_ids"] == expected_ids(PROMPTS[number // 9], 30)


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_min_tokens_hold_for_end_tokens_that_tensorrt_llm_does_not_get(strategy):
    """It can ban them for a whole call only, so a call that bans them ends where they are allowed."""
    for prompt in PROMPTS:
        ends = frozenset({END_ID, *expected_ids(prompt, 40)[4:7]})
        words = [letters([token]) for token in ends]  # those of a model, or special tokens as stop words
        expected = expected_ids(prompt, 40, ends, 19)
        for codec, stop_words in ((letter_codec(ends), [""]), (letter_codec(), words)):
            codec.special_ids = ends
            bls, _ = strict_bls("trie", codec=codec)
            assert ids_of(bls, prompt, 40, strategy=strategy, min_tokens=19, stop_words=stop_words) == expected


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_a_stop_word_before_min_tokens_that_ends_a_call_does_not_end_the_output(strategy):
    """TensorRT-LLM ends a streamed call at the tokens of a stop word."""
    bls, _ = strict_bls("trie")
    whole = letters(expected_ids("ccddccddcc", 60, min_tokens=20))
    word = recurring_letter(whole, 20)

    answers = run_in(bls, text_tensors("ccddccddcc", 60, strategy=strategy, stop_words=[word], min_tokens=20))

    assert text_of(answers) == whole[: whole.index(word, 20)]

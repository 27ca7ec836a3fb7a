"""Without drafts, an output is one streamed request to a TensorRT-LLM engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.backends.tensorrt_llm.strict import strict_engine
from pipeline.errors import BusyError
from pipeline.triton_models.bls import Bls
from pipeline.triton_models.text_codec import TextCodec
from tests.fakes import VOCAB_SIZE
from tests.patience import PATIENCE_S
from tests.unit.triton_models.fakes import (
    END_ID,
    LetterTokenizer,
    TableTarget,
    letter_codec,
    small_config,
    text_tensors,
)
from tests.unit.triton_models.test_bls import answers_of, expected_ids, letters, run, run_in, statistics_of, text_of
from tests.unit.triton_models.test_bls_chains import STRICT

PROMPT = "bcdbcd"
FREE = 25  # a token that the table gives to no letter of the tests' words


def lookahead_bls(*overrides: str, codec: TextCodec | None = None, mode: str = "lookahead") -> tuple[Bls, TableTarget]:
    resolved = small_config(*STRICT, f"tensorrt_llm.speculation={mode}", *overrides)
    target = TableTarget(strict_engine(resolved, mode, VOCAB_SIZE))  # type: ignore[arg-type]
    return Bls(resolved, codec or letter_codec(), [target]), target


class SpellingTokenizer(LetterTokenizer):
    """Spells some words with tokens of its own choice."""

    def __init__(self, spellings: dict[str, list[int]]) -> None:
        self._spellings = spellings

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._spellings.get(text) or super().encode(text, add_special_tokens)


def spelling_codec(spellings: dict[str, list[int]]) -> TextCodec:
    return TextCodec(SpellingTokenizer(spellings), frozenset({END_ID}), VOCAB_SIZE)


@pytest.mark.parametrize("stop_words", [[], ["zzz"], ["zzz", "qqqqqq", "z"]], ids=len)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("mode", "strategy"), [("lookahead", "lookahead"), ("lookahead", "none"), ("none", "none")])
def test_128_tokens_compute_the_prompt_once(stop_words, stream, mode, strategy):
    bls, target = lookahead_bls(mode=mode)
    fields: dict[str, Any] = {"stop_words": stop_words} if stop_words else {}
    whole = expected_ids(PROMPT, 128, frozenset())
    assert not any(word in letters(whole) for word in stop_words)

    asked = text_tensors(PROMPT, 128, strategy=strategy, stream=stream, end_id=-1, return_statistics=True, **fields)
    answers = run_in(bls, asked)

    statistics = statistics_of(answers)
    assert statistics["output_ids"] == whole
    assert statistics["num_engine_calls"] == target.engine.reuse.num_opened == 1
    assert (len(answers) > 20) == stream
    assert target.cancelled == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_word_that_the_engine_is_sent_ends_its_request(stream, length):
    bls, target = lookahead_bls()
    whole = letters(expected_ids(PROMPT, 60, frozenset()))
    start = 20
    word = whole[start : start + length]
    asked = text_tensors(PROMPT, 60, stream=stream, end_id=-1, stop_words=[word], return_statistics=True)

    answers = run_in(bls, asked)

    assert text_of(answers) == whole[: whole.index(word)]
    assert statistics_of(answers)["finish_reason"] == "stop_words"
    assert len(target.calls) == 1
    assert not target.engine.held


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_word_that_shows_in_the_text_only_cancels_the_engines_request(stream):
    whole = letters(expected_ids(PROMPT, 60, frozenset()))
    word = whole[20:23]
    bls, target = lookahead_bls(codec=spelling_codec({word: [FREE]}))

    answers = run_in(bls, text_tensors(PROMPT, 60, stream=stream, end_id=-1, stop_words=[word]))

    assert text_of(answers) == whole[: whole.index(word)]
    assert len(target.cancelled) == len(target.calls) == 1
    assert target.engine.num_passes < 30
    assert not target.engine.held


def test_tokens_of_a_stop_word_that_spell_another_text_do_not_end_the_output():
    whole = expected_ids(PROMPT, 60, frozenset())
    bls, target = lookahead_bls(codec=spelling_codec({"Stop": whole[20:22]}))

    asked = text_tensors(PROMPT, 60, stream=True, end_id=-1, stop_words=["Stop"], return_statistics=True)
    answers = run_in(bls, asked)

    assert statistics_of(answers)["output_ids"] == whole
    assert text_of(answers) == letters(whole)
    assert len(target.calls) > 1


def test_an_end_token_is_found_behind_a_stop_word_that_did_not_show():
    """Both end the engine's request without a word."""
    whole = expected_ids(PROMPT, 60, frozenset())
    end = whole[24]
    expected = expected_ids(PROMPT, 60, frozenset({end}))
    bls, _ = lookahead_bls(codec=spelling_codec({"Stop": expected[-3:-1]}))

    asked = text_tensors(PROMPT, 60, end_id=end, stop_words=["Stop"], return_statistics=True)
    statistics = statistics_of(run_in(bls, asked))

    assert statistics["output_ids"] == expected
    assert statistics["finish_reason"] == "end_token"


def test_a_client_that_leaves_ends_the_engines_request():
    bls, target = lookahead_bls()

    async def leave() -> None:
        async for _ in bls.answer(text_tensors(PROMPT, 200, stream=True, end_id=-1)):
            break  # the generator is closed with the loop

    async def cancel() -> None:
        task = asyncio.ensure_future(answers_of(bls, text_tensors(PROMPT, 200, end_id=-1)))
        while target.engine.num_passes < 12:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.cancelled()

    run(leave())
    run(cancel())

    assert len(target.cancelled) == len(target.calls) == 2
    assert not target.engine.held
    assert target.engine.num_passes < 30


@pytest.mark.parametrize(("mode", "fields"), [("lookahead", {}), ("none", {"temperature": 0.8, "seed": 3})])
def test_only_greedy_streams_give_way_to_requests_that_wait(mode, fields):
    """The rest of a greedy output comes of another call; sampled noise would be another one there."""
    bls, target = lookahead_bls("engine.max_batch_size=1", mode=mode)
    bls._served[0].slots.slice_s = 0.0
    alone = {prompt: text_of(run_in(bls, text_tensors(prompt, 40, end_id=-1, **fields))) for prompt in (PROMPT, "ccdd")}
    num_calls = len(target.calls)

    async def together() -> list[Any]:
        return await asyncio.gather(
            *(answers_of(bls, text_tensors(prompt, 40, end_id=-1, **fields)) for prompt in alone)
        )

    assert [text_of(answers) for answers in run(together())] == list(alone.values())
    assert (len(target.calls) - num_calls > 2) == (not fields)


class BusyTarget(TableTarget):
    """A target that refuses the first streams as busy."""

    num_refusals = 0

    async def stream(self, *arguments: Any) -> Any:
        if self.num_refusals:
            self.num_refusals -= 1
            raise BusyError("busy")
        async for answer in super().stream(*arguments):
            yield answer


def test_a_request_that_has_begun_outlasts_a_busy_engine_and_one_that_has_not_is_refused():
    codec = spelling_codec({"Stop": expected_ids(PROMPT, 60, frozenset())[20:22]})
    resolved = small_config(*STRICT, "tensorrt_llm.speculation=lookahead")
    target = BusyTarget(strict_engine(resolved, "lookahead", VOCAB_SIZE))
    bls = Bls(resolved, codec, [target])
    asked = text_tensors(PROMPT, 60, stream=True, end_id=-1, stop_words=["Stop"], return_statistics=True)

    async def busy_in_the_middle() -> list[Any]:
        answers = []
        async for answer in bls.answer(asked):
            target.num_refusals = 3 if not answers else target.num_refusals
            answers.append(answer)
        return answers

    assert statistics_of(run(busy_in_the_middle()))["output_ids"] == expected_ids(PROMPT, 60, frozenset())
    assert target.num_refusals == 0
    target.num_refusals = 1
    with pytest.raises(BusyError):
        run_in(bls, asked)

"""Refusals of `lookahead_bls`, and long texts that must not delay other requests."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.errors import RequestError
from pipeline.triton_models.bls import Bls
from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_request import text_request
from tests.patience import PATIENCE_S
from tests.unit.triton_models.fakes import TableTarget, letter_codec, small_config, text_tensors
from tests.unit.triton_models.test_bls import (
    answers_of,
    expected_ids,
    letters,
    make_bls,
    run,
    run_in,
    statistics_of,
    text_of,
)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"text": ""}, "text_input is empty"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"strategy": "magic"}, "strategy is 'magic'"),
        ({"strategy": "m" * 9999}, r"strategy is 'm{40}'; it must be"),
        ({"min_tokens": 99}, "min_tokens is 99"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"min_p": -1.0}, r"min_p is -1; it must be in 0 \.\. 1"),
        ({"end_id": -5}, r"end_id is -5; it must be in -1 \.\. 23"),
        ({"end_id": 99999}, r"end_id is 99999; it must be in -1 \.\. 23"),
        ({"num_draft_tokens": -4}, "num_draft_tokens is -4"),
        ({"beam_width": 2}, "beam_width is 2"),
        ({"beam_width": 2**31 - 1}, "beam_width is 2147483647; lookahead_bls supports 1 only"),
        ({"top_k": -(2**31)}, "top_k is -2147483648; it must be at least 0"),
        ({"num_top_logprobs": 2}, "num_top_logprobs was sent without return_log_probs"),
        ({"return_log_probs": True, "num_top_logprobs": 99}, r"num_top_logprobs is 99; it must be in 0 \.\. 64"),
        ({"guided_decoding_guide_type": "xml", "guided_decoding_guide": "x"}, "the guide type is 'xml'"),
        ({"guided_decoding_guide_type": "regex"}, "the guide of type regex is empty"),
        ({"guided_decoding_guide": "a+"}, "without guided_decoding_guide_type"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(a"}, "cannot be used"),
        ({"messages": "{"}, "messages is not valid JSON"),
        ({"messages": "[]"}, "messages must be a list"),
        ({"messages": '"hi"'}, "messages must be a list"),
        ({"messages": '["hi"]'}, r"messages\[0\] must be an object"),
        ({"messages": '[{"role": "king", "content": "x"}]'}, "role 'king'"),
        ({"messages": '[{"role": "user"}]'}, r"messages\[0\] must be an object"),
        ({"use_chat_template": True}, "no chat template"),
        ({"system_prompt": "be brief"}, "set use_chat_template"),
        ({"lookahead_ngram_size": 3}, "belong together"),
        ({"embedding_bias_words": ["a"], "embedding_bias_weights": [1.0, 2.0]}, "1 words"),
        ({"embedding_bias_words": ["a"], "embedding_bias_weights": [float("nan")]}, "embedding_bias_weights holds nan"),
        (
            {"embedding_bias_words": ["az"], "embedding_bias_weights": [1.0]},
            r"embedding_bias_words holds token 25 at position 1, which lies outside the vocabulary 0 \.\. 23",
        ),
        ({"logit_bias_ids": [1, 2], "logit_bias_values": [1.0]}, "2 tokens, .* 1 values; send one value"),
        (
            {"logit_bias_ids": [99], "logit_bias_values": [1.0]},
            r"the logit bias holds token 99 at position \d, which lies outside the vocabulary 0 \.\. 23",
        ),
        ({"logit_bias_ids": [1], "logit_bias_values": [float("nan")]}, "the logit bias holds a number"),
        ({"prompt_ignore_length": -1}, "prompt_ignore_length is -1"),
        ({"input_ids": [1, 2]}, "input_ids was sent beside a text"),
        (
            {"text": "", "input_ids": [1, 99]},
            r"the prompt holds token 99 at position 1, which lies outside the vocabulary 0 \.\. 23",
        ),
        ({"num_resumed_tokens": 1}, "num_resumed_tokens was sent without input_ids"),
        (
            {"text": "", "input_ids": [1, 2], "num_resumed_tokens": 2},
            r"num_resumed_tokens is 2; it must be in 0 \.\. 1",
        ),
        ({"text": "", "input_ids": [1, 2], "num_resumed_tokens": -1}, "num_resumed_tokens is -1"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"prediction": "bcz"}, "prediction holds token 25 at position 2, which lies outside the vocabulary 0 .. 23"),
        ({"text": "b" * 300}, "300 tokens; prompt and output may have 256"),
    ],
)
def test_a_wrong_request_gets_a_sentence_and_the_next_one_works(wrong, sentence):
    bls = make_bls()
    with pytest.raises(RequestError, match=sentence):
        run_in(bls, text_tensors(**({"text": "bcd", "max_tokens": 5} | wrong)))

    assert text_of(run_in(bls, text_tensors("bcd", 5)))


@pytest.mark.parametrize("name", ["bad_words", "stop_words", "embedding_bias_words"])
@pytest.mark.parametrize("words", [["b"] * 2000, ["b" * 70000]], ids=["many", "long"])
def test_word_lists_that_would_take_others_time_are_refused(name, words):
    with pytest.raises(RequestError, match=f"{name} holds .* at most 1024 words of 65536 bytes"):
        run_in(make_bls(), text_tensors("bcd", 5, **{name: words}))


def test_a_prompt_that_cannot_fit_is_refused_by_its_beginning(monkeypatch):
    codec = letter_codec()
    bls = Bls(small_config(), codec, [TableTarget()])
    encode, encoded = codec.encode, []
    monkeypatch.setattr(codec, "encode", lambda text, *more: encoded.append(len(text)) or encode(text, *more))

    refusal = "maximum context length is 256 tokens, and the first 4080 characters of the prompt have more than 510"
    with pytest.raises(RequestError, match=refusal):
        run_in(bls, text_tensors("b" * 1_000_000, 5))
    assert encoded == [16 * 255]
    with pytest.raises(RequestError, match="the prompt has 4080 tokens; prompt and output may have 256"):
        run_in(bls, text_tensors("b" * 4080, 5))


def test_a_prompt_of_few_long_tokens_is_not_refused_by_its_characters():
    word = "a" * 200
    core = Tokenizer(models.WordLevel({word: 0, "?": 1}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("a{200}"), "isolated")
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=core), frozenset(), 2)

    request = text_request(codec, text_tensors(word * 200, 5), "r", "none", longest_prompt=200)

    assert request.generation.prompt_ids.tolist() == [0] * 200


def test_of_a_long_prediction_only_what_an_output_can_have_is_read(monkeypatch):
    codec = letter_codec()
    bls = Bls(small_config(), codec, [TableTarget()])
    encode, encoded = codec.encode, []
    monkeypatch.setattr(codec, "encode", lambda text, *more, **named: encoded.append(len(text)) or encode(text, False))
    right = letters(expected_ids("ccddccddcc", 30))

    asked = text_tensors("ccddccddcc", 30, strategy="trie", prediction=right + "b" * 1_000_000, return_statistics=True)
    statistics = statistics_of(run_in(bls, asked))

    assert max(encoded) == 16 * 255
    assert statistics["mean_acceptance_length"] > 4


def test_other_requests_go_on_while_a_long_text_is_tokenized(monkeypatch):
    codec = letter_codec()
    bls = Bls(small_config(), codec, [TableTarget()])
    encode, over = codec.encode, threading.Event()

    def slow(text: str, *more: Any) -> Any:
        if len(text) > 200:
            assert over.wait(PATIENCE_S), "the short request waited for the long one"
        return encode(text, *more)

    monkeypatch.setattr(codec, "encode", slow)

    async def together() -> None:
        long = asyncio.ensure_future(answers_of(bls, text_tensors("b" * 5000, 5)))
        await asyncio.sleep(0)
        assert text_of(await answers_of(bls, text_tensors("bcd", 5))) == letters(expected_ids("bcd", 5))
        over.set()
        with pytest.raises(RequestError, match="the first 4080 characters of the prompt have more than"):
            await long

    run(together())


def test_more_logits_than_an_output_may_hold_are_refused():
    """Four bytes for each of 24 tokens: those of a small request can take gigabytes. Those of a stream would wait in
    Triton's memory for a client that does not read."""
    bls = Bls(small_config("server.gateway.max_logits_bytes=960"), letter_codec(), [TableTarget()])

    def num_answers(text: str, max_tokens: int, **more: bool) -> int:
        return len(run(answers_of(bls, text_tensors(text, max_tokens, **more))))

    assert num_answers("ccdd", 10, return_generation_logits=True) == 1
    assert num_answers("ccdd", 10, return_generation_logits=True, stream=True) > 1
    for stream in (False, True):
        with pytest.raises(RequestError, match="up to 1056 bytes of logits, and 960 are allowed"):
            num_answers("ccdd", 11, return_generation_logits=True, stream=stream)
    with pytest.raises(RequestError, match="up to 1056 bytes"):
        num_answers("c" * 11, 1, return_context_logits=True)


def test_bad_utf8_gets_a_sentence():
    tensors = text_tensors("b", 5) | {"text_input": np.asarray([[b"b\xff"]], np.object_)}

    with pytest.raises(RequestError, match="not valid UTF-8"):
        run_in(make_bls(), tensors)


def test_half_a_surrogate_pair_in_messages_gets_a_sentence():
    codec = letter_codec()
    codec.tokenizer.chat_template = "template"
    codec.tokenizer.apply_chat_template = lambda messages, **keywords: messages[0]["content"]
    bls = Bls(small_config(), codec, [TableTarget()])
    with pytest.raises(RequestError, match=r"holds '\\ud800', half of a surrogate pair"):
        run_in(bls, text_tensors("b", 5, messages=json.dumps([{"role": "user", "content": "\ud800"}])))


@pytest.mark.parametrize("name", ["return_log_probs", "return_generation_logits", "return_context_logits"])
def test_a_stream_of_a_safe_server_refuses_logits_and_does_not_leave_them_out(name):
    bls = make_bls(None, "server.side_channel_safe=true")
    with pytest.raises(RequestError, match="only in whole responses of generate and infer"):
        run(answers_of(bls, text_tensors("abc", 4, stream=True, **{name: True})))

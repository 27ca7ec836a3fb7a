"""Requests of Dynamo as tensors of `lookahead_bls`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.dynamo.request_tensors import TokenRequest, token_request
from pipeline.dynamo.spec import WorkerSpec
from pipeline.errors import RequestError
from pipeline.gateway.annotations import annotation
from tests.unit.dynamo.requests import SPEC, request


def read(asked: dict[str, Any], context: str = "one", spec: WorkerSpec = SPEC) -> TokenRequest:
    return token_request(asked, context, spec)


def values(wanted: TokenRequest) -> dict[str, Any]:
    return {name: value.reshape(-1).tolist() for name, value in wanted.tensors.items()}


def test_a_plain_request_is_sampled_as_the_openai_api_says():
    wanted = read(request())

    sent = values(wanted)
    assert sent["input_ids"] == [5, 6, 7]
    assert sent["temperature"] == [1.0]
    assert sent["max_tokens"] == [10]
    assert sent["stream"] == sent["return_statistics"] == [True]
    assert not {"num_resumed_tokens", "min_tokens", "end_id", "top_p", "top_k", "strategy"} & sent.keys()
    assert (wanted.num_prompt_tokens, wanted.num_remaining_tokens) == (3, 10)


def test_options_get_their_tensors():
    sampling = {"temperature": 0.5, "top_p": 0.75, "top_k": 4, "min_p": 0.25, "repetition_penalty": 1.5, "seed": 9}
    sent = values(read(request(None, {"min_tokens": 2, "ignore_eos": True}, sampling)))

    assert {name: sent[name] for name in sampling} == {name: [value] for name, value in sampling.items()}
    assert (sent["min_tokens"], sent["end_id"]) == ([2], [-1])


def test_top_k_that_is_off_is_left_out():
    assert not any("top_k" in values(read(request(None, None, {"top_k": off}))) for off in (-1, 0))
    assert values(read(request(None, None, {"top_k": 1})))["top_k"] == [1]


def test_a_seed_is_of_the_request_and_the_same_on_every_worker():
    seeds = [values(read(request(), context))["seed"] for context in ("one", "one", "two")]

    assert seeds[0] == seeds[1] != seeds[2]
    assert values(read(request(None, None, {"seed": -1})))["seed"] == [2**64 - 1]


@pytest.mark.parametrize("number", [0, 2])
def test_a_worker_answers_with_one_choice(number):
    with pytest.raises(RequestError, match="n must be 1 without the gateway"):
        read(request(sampling={"n": number}))


def test_without_max_tokens_the_output_may_fill_the_engine():
    assert read(request(None, {"max_tokens": None})).num_remaining_tokens == 97
    assert read(request(None, {"max_tokens": 5000})).num_remaining_tokens == 97


@pytest.mark.parametrize("max_tokens", [None, 10])
def test_a_prompt_that_fills_the_engine_leaves_one_token_which_the_server_refuses(max_tokens):
    full = read(request([5] * 100, {"max_tokens": max_tokens, "min_tokens": 1}))
    assert (full.num_remaining_tokens, values(full)["max_tokens"]) == (1, [1])
    with pytest.raises(RequestError, match="the prompt has 100"):
        read(request([5] * 100, {"max_tokens": max_tokens, "min_tokens": 2}))


@pytest.mark.parametrize(("annotations", "prefix"), [(["plain_text:true"], [1]), ([], [])])
def test_a_text_without_a_chat_template_begins_with_the_tokenizers_own_tokens(annotations, prefix):
    """It had no BOS token, so the output was another than that of Triton's models."""
    spec = SPEC.model_copy(update={"prompt_prefix": (1,)})
    moved = token_request(request([5, 6, 7], {"max_tokens": 9}, {}, "max_tokens:10", *annotations), "id", spec)
    assert moved.tensors["input_ids"].tolist() == [[*prefix, 5, 6, 7]]
    assert (moved.num_prompt_tokens, moved.num_resumed_tokens) == (2 + len(prefix), 1)
    assert moved.has_prefix == bool(prefix)


def test_a_request_that_moved_counts_its_tokens_as_output():
    stop, penalty = {"max_tokens": 8, "min_tokens": 4}, {"presence_penalty": 0.5}
    moved = read(request([5, 6, 7, 8, 9], stop, penalty, annotation("max_tokens", "10"), "stop_token_ids:[3]"))

    sent = values(moved)
    assert (sent["num_resumed_tokens"], sent["max_tokens"], sent["min_tokens"]) == ([2], [10], [4])
    assert sent["prompt_ignore_length"] == [3]
    assert (moved.num_prompt_tokens, moved.num_resumed_tokens, moved.num_remaining_tokens) == (3, 2, 8)
    assert (moved.num_before_end([3, 3, 3], 0), moved.num_before_end([3, 3, 3], 1)) == (2, 1)
    longest = {"max_tokens": 998, "min_tokens": 97}
    assert read(request([5, 6, 7, 8, 9], longest, None, annotation("max_tokens", "1000"))).min_tokens == 97


def test_a_request_that_moved_with_all_its_tokens_has_none_to_come():
    assert read(request([5, 6, 7, 8], {"max_tokens": 0}, None, "max_tokens:1")).num_remaining_tokens == 0


@pytest.mark.parametrize("of_output", ["3", "13", "14", "x"])
def test_counts_that_cannot_be_are_refused(of_output):
    with pytest.raises(RequestError, match="max_tokens is"):
        read(request(None, {"max_tokens": 10}, None, f"max_tokens:{of_output}"))


@pytest.mark.parametrize(
    ("min_tokens", "annotations", "sentence"),
    [
        (98, ["max_tokens:1000"], "min_tokens is 98; prompt and output may have 100 tokens, and the prompt has 3"),
        (98, [], "min_tokens is 98; prompt and output may have 100 tokens, and the prompt has 3"),
        (21, ["max_tokens:20"], r"min_tokens is 21; it must be in 0 \.\. 20 \(max_tokens\)"),
    ],
)
def test_a_min_tokens_that_does_not_fit_is_refused_with_what_the_client_sent(min_tokens, annotations, sentence):
    limit = int(annotations[0].partition(":")[2]) if annotations else 1000
    with pytest.raises(RequestError, match=sentence):
        read(request(None, {"min_tokens": min_tokens, "max_tokens": limit}, None, *annotations))
    fits = {"min_tokens": min(limit, 97), "max_tokens": limit}
    assert values(read(request(None, fits, None, *annotations)))["min_tokens"] == [fits["min_tokens"]]


@pytest.mark.parametrize(("supported", "expected"), [(True, [3]), (False, None)])
def test_penalties_leave_the_prompt_out_where_the_engine_can(supported, expected):
    spec = SPEC.model_copy(update={"prompt_ignore_length": supported})

    sent = values(read(request(None, None, {"frequency_penalty": 0.5}), spec=spec))

    assert sent.get("prompt_ignore_length") == expected
    assert "prompt_ignore_length" not in values(read(request(None, None, {"frequency_penalty": 0.0}), spec=spec))


def test_annotations_become_tensors():
    sent = values(
        read(
            request(
                None,
                None,
                None,
                "strategy:trie",
                "prediction:a: b",
                "namespace:n",
                'logit_bias:{"5": 1.5, "7": -100}',
                "num_draft_tokens:4",
                "token_ids",
            )
        )
    )

    assert (sent["strategy"], sent["prediction"], sent["namespace"]) == ([b"trie"], [b"a: b"], [b"n"])
    assert (sent["logit_bias_ids"], sent["logit_bias_values"]) == ([5, 7], [1.5, -100.0])
    assert sent["num_draft_tokens"] == [4]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [([], (False, False)), (["prediction:a"], (True, False)), (["draft_statistics:"], (False, True))],
)
def test_figures_of_drafts_are_for_those_who_ask(annotations, expected):
    wanted = read(request(None, None, None, *annotations))
    assert (wanted.has_prediction, wanted.returns_statistics) == expected


@pytest.mark.parametrize(("num_top", "expected"), [(0, None), (3, [3])])
def test_log_probabilities_are_requested_with_their_alternatives(num_top, expected):
    wanted = read(request(output_options={"logprobs": num_top}))

    sent = values(wanted)
    assert sent["return_log_probs"] == [True]
    assert sent.get("num_top_logprobs") == expected
    assert "return_log_probs" not in values(read(request(output_options={"logprobs": None})))


def test_a_cache_salt_keeps_drafts_apart():
    assert values(read(request(routing={"cache_salt": "s"})))["namespace"] == [b"s"]


NO_TOKENS = ["a", "4294967301", "5_0", " 5", "+5", "-5", "", "\u0665"]
NO_BIASES = ["b", "2", True, None]


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", "7", *(json.dumps({key: 1}) for key in NO_TOKENS), *(json.dumps({"1": bias}) for bias in NO_BIASES)],
)
def test_a_logit_bias_that_is_none_is_refused(text):
    with pytest.raises(RequestError, match="logit_bias must be an object"):
        read(request(None, None, None, f"logit_bias:{text}"))


def test_stop_words_of_the_annotation_win_over_those_of_dynamos_field():
    assert values(read(request(None, {"stop": ["a"]})))["stop_words"] == [b"a"]
    asked = request(None, {"stop": ["a"]}, None, 'stop_words:["b: c", "\\u0e01"]')
    assert values(read(asked))["stop_words"] == [b"b: c", "\u0e01".encode()]


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}', '"b"', "7"])
def test_stop_words_that_are_no_list_of_texts_are_refused(text):
    with pytest.raises(RequestError, match="stop_words must be a JSON list of texts"):
        read(request(None, None, None, f"stop_words:{text}"))


@pytest.mark.parametrize("text", ["{", '["a"]', "[-1]", "[true]", "[1.5]", "7"])
def test_stop_tokens_that_are_no_list_of_ids_are_refused(text):
    with pytest.raises(RequestError, match="stop_token_ids must be a JSON list of token ids"):
        read(request(None, None, None, f"stop_token_ids:{text}"))


def test_a_top_p_of_zero_keeps_one_token():
    """Triton takes it for no limit."""
    assert values(read(request(None, None, {"top_p": 0.0, "top_k": 5})))["top_k"] == [1]
    assert "top_k" not in values(read(request(None, None, {"top_p": 0.1})))


def test_a_token_that_its_tensor_would_wrap_is_refused_as_it_was_sent():
    with pytest.raises(RequestError, match="the prompt holds token 2147483648"):
        read(request([1, 1 << 31]))


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        read(request([]))


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) + 2, 1 << 70, -(1 << 32), "1_0", " 5", "\u0665"])
def test_a_number_that_is_none_of_32_bits_is_refused(number):
    with pytest.raises(RequestError, match=f"num_draft_tokens is '{number}'; it must be a whole number of 32 bits"):
        read(request(None, None, None, f"num_draft_tokens:{number}"))


@pytest.mark.parametrize(
    ("decoding", "kind", "guide"),
    [
        ({"json": {"type": "object"}}, b"json_schema", json.dumps({"type": "object"}).encode()),
        ({"regex": "a+"}, b"regex", b"a+"),
        ({"choice": ["a.b", "c"]}, b"regex", rb"(?:a\.b)|(?:c)"),
        ({"grammar": "root ::= x"}, b"ebnf_grammar", b"root ::= x"),
    ],
)
def test_a_response_format_becomes_a_guide(decoding, kind, guide):
    sent = values(read(request(None, None, {"guided_decoding": decoding})))

    assert (sent["guided_decoding_guide_type"], sent["guided_decoding_guide"]) == ([kind], [guide])


def test_a_guide_as_annotations_wins():
    asked = request(None, None, {"guided_decoding": {"regex": "a"}}, "guide_type:json", "guide:")

    sent = values(read(asked))

    assert sent["guided_decoding_guide_type"] == [b"json"]
    assert "guided_decoding_guide" not in sent


def test_the_guide_that_dynamo_makes_of_tools_is_not_used():
    decoding = {"guided_decoding": {"json": {}}}
    assert "guided_decoding_guide_type" in values(read(request(None, None, decoding)))
    assert "guided_decoding_guide_type" not in values(read(request(None, None, decoding, annotation("tools", "true"))))

"""The OpenAI API in front of Triton, with OpenAI's client."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from tests.integration.openai_requests import MESSAGES, MODEL, chat, text
from tests.integration.servers import LONG, ask, metrics_page, num_cancelled, settled_metrics
from tests.patience import PATIENCE_S
from tests.unit.test_deploy import dashboard_queries, metric_names

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL]


def test_another_model_is_not_found(client):
    for ask_for in (client.models.retrieve, lambda name: client.completions.create(model=name, prompt="a")):
        with pytest.raises(openai.NotFoundError, match="there is no model 'org/other'") as caught:
            ask_for("org/other")
        assert caught.value.code == "model_not_found"


def test_a_chat_is_answered_with_usage_and_the_text_of_triton_alone(client, openai_fleet):
    answer = chat(client)
    direct = ask(openai_fleet.servers[0], text_input=MESSAGES[0]["content"], use_chat_template=True)

    assert answer.choices[0].message.content == direct.text
    assert answer.choices[0].finish_reason == {"length": "length", "end_token": "stop"}[direct.finish_reason or ""]
    assert answer.usage is not None
    assert direct.statistics is not None
    assert answer.usage.prompt_tokens == len(direct.statistics["prompt_ids"])
    assert answer.usage.completion_tokens == len(direct.statistics["output_ids"])


def test_a_stream_is_the_same_text_and_ends_with_usage(client):
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text(client)
    assert sum(bool(chunk.choices) for chunk in chunks) > 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_the_same_seed_gives_the_same_text_with_any_strategy(client):
    sampled = {"temperature": 1.0}
    texts = {
        text(client, seed=5, extra_body={"nvext": {"annotations": [f"strategy:{strategy}"]}}, **sampled)
        for strategy in ("none", "trie", "hybrid")
    }

    assert len(texts) == 1
    assert text(client, seed=6, **sampled) not in texts
    assert len({text(client, **sampled) for _ in range(3)}) == 3
    greedy = {"nvext": {"greed_sampling": True}}
    assert text(client, seed=5, extra_body=greedy, **sampled) == text(client)


def test_a_stop_word_ends_the_text(client):
    whole = text(client)
    word = whole[6:9]

    answer = chat(client, stop=[word])

    assert answer.choices[0].message.content == whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"
    later = chat(client, stop=[word], extra_body={"min_tokens": 12})
    assert later.usage.completion_tokens >= 12
    assert (later.choices[0].message.content or "").startswith(whole[: whole.index(word) + len(word)])


def test_each_of_many_stop_words_ends_the_text_also_where_the_end_token_is_ignored(client):
    ignoring = {"extra_body": {"ignore_eos": True}}
    whole = text(client, **ignoring)

    for stop in (whole[6:9], [*(f"none {number}" for number in range(15)), whole[6:9]]):
        answer = chat(client, stop=stop, **ignoring)

        assert answer.choices[0].message.content == whole[: whole.index(whole[6:9])]
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_token_ends_the_text_and_the_usage_ends_with_it(client, openai_fleet, ignore_eos):
    direct = ask(openai_fleet.servers[0], text_input=MESSAGES[0]["content"], use_chat_template=True)
    output = direct.statistics["output_ids"]
    for place in (0, 3, 10):
        answer = chat(client, extra_body={"stop_token_ids": [output[place]], "ignore_eos": ignore_eos})
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == output.index(output[place])


def test_a_schema_is_kept_with_any_strategy(client):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 22]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}

    texts = {text(client, seed=3, extra_body={"strategy": strategy}, **asked) for strategy in ("none", "hybrid")}

    assert len(texts) == 1
    assert json.loads(texts.pop())["a"] in (1, 22)


def test_fields_of_our_own_and_biases_reach_the_engine(client):
    answer = chat(client, logit_bias={"40": 100}, extra_body={"strategy": "trie", "draft_statistics": True})

    statistics = answer.nvext["engine_data"]["draft_statistics"]  # type: ignore[attr-defined]
    assert statistics["strategy"] == "trie"
    figures = answer.metrics["speculative_decoding"]  # type: ignore[attr-defined]  # where AIPerf reads them
    assert figures["num_spec_steps"] == statistics["num_steps"] - 1
    assert len(set(answer.choices[0].message.content or "")) == 1


def test_completions_take_a_prompt_as_triton_does(client, openai_fleet):
    answer = client.completions.create(model=MODEL, prompt="the rat", max_tokens=16, temperature=0)

    assert answer.choices[0].text == ask(openai_fleet.servers[0], text_input="the rat", max_tokens=16).text


def test_a_prediction_is_verified_and_counted(client):
    whole = text(client)
    annotations = ["strategy:trie", f"prediction:{whole}", "namespace:of this test"]

    answer = chat(client, extra_body={"nvext": {"annotations": annotations, "extra_fields": ["engine_data"]}})

    assert answer.choices[0].message.content == whole
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    # The tiny model writes bytes that are no text, so its text encodes to other tokens in part.
    assert answer.usage.completion_tokens >= (details.accepted_prediction_tokens or 0) > 0
    statistics = answer.nvext["engine_data"]["draft_statistics"]  # type: ignore[attr-defined]
    assert statistics["num_accepted_prediction_tokens"] == details.accepted_prediction_tokens
    assert statistics["strategy"] == "trie"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"extra_body": {"nvext": {"annotations": ["strategy:magic"]}}}, "strategy is 'magic'"),
        ({"extra_body": {"nvext": {"annotations": ["logit_bias:{}x"]}}}, "logit_bias must be an object"),
        ({"messages": [{"role": "user", "content": "the rat " * 20_000}]}, "maximum context length"),
        ({"logprobs": True, "top_logprobs": 21}, r"top_logprobs must be a whole number in 0 \.\. 20; found 21"),
    ],
)
def test_a_wrong_request_gets_the_reason(client, wrong, sentence):
    with pytest.raises(openai.BadRequestError, match=sentence):
        chat(client, **wrong)


@pytest.mark.parametrize("stream", [False, True])
def test_completions_and_streams_get_the_reason_too(client, stream):
    wrong: dict[str, Any] = {"model": MODEL, "stream": stream, "logit_bias": {"999999": 1}}
    sentence = "the logit bias holds token 999999 at position 0, which lies outside the vocabulary"
    with pytest.raises(openai.BadRequestError, match=r"logprobs must be a whole number in 0 \.\. 5"):
        client.completions.create(model=MODEL, prompt="a", stream=stream, logprobs=6)
    with pytest.raises(openai.BadRequestError, match=sentence):
        client.completions.create(prompt="a", **wrong)
    with pytest.raises(openai.BadRequestError, match=sentence):
        client.chat.completions.create(messages=MESSAGES, **wrong)
    with pytest.raises(openai.BadRequestError, match=sentence):
        client.completions.create(prompt="a", n=2, **wrong)
    for choice in ("auto", "required"):  # the front end leaves the worker's fields out of an answer with tools
        with pytest.raises(openai.BadRequestError, match=sentence):
            client.chat.completions.create(messages=MESSAGES, tools=TOOLS, tool_choice=choice, **wrong)


def test_a_client_that_leaves_ends_its_request(client, openai_fleet):
    before, deadline = num_cancelled(openai_fleet), time.monotonic() + PATIENCE_S
    # A fast engine may be done before the news arrive.
    while num_cancelled(openai_fleet) == before:
        assert time.monotonic() < deadline
        stream = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=LONG,
            stream=True,
            extra_body={"ignore_eos": True, "nvext": {"annotations": ["strategy:none"]}},
        )
        next(iter(stream))
        stream.close()
        settled_metrics(openai_fleet)


def test_workers_count_drafts_under_the_names_of_vllm(client, openai_fleet):
    chat(client)
    worker = next(service.state for service in openai_fleet.services if service.name == "worker-1")

    metrics = httpx.get(f"http://127.0.0.1:{worker.ports['metrics']}/metrics", trust_env=False, timeout=PATIENCE_S).text

    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"):
        assert f"vllm:spec_decode_{name}_total{{" in metrics


def test_every_metric_of_the_dashboard_is_exposed(client, openai_fleet):
    chat(client)
    settled_metrics(openai_fleet, requests_total=0)
    lines = metrics_page(openai_fleet.servers[0]).splitlines()
    exposed = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}

    wanted = {name for query in dashboard_queries() for name in metric_names(query)}

    assert wanted <= exposed

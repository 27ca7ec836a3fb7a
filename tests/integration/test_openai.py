"""The OpenAI API in front of Triton, asked with OpenAI's client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from pipeline.config.places import Places
from pipeline.dynamo.fleet import Fleet, find_replicas, openai_url, start_fleet, stop_fleet
from pipeline.server.figures import read_metrics
from pipeline.server.service import find_services
from tests.integration.servers import ask, prepared
from tests.servers import left_over
from tests.unit.test_deploy import dashboard_queries, metric_names

pytestmark = [pytest.mark.triton, pytest.mark.slow]

MODEL = "tiny-random-llama"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "the rat at the tea"}]


@pytest.fixture(scope="module")
def fleet(shared_where: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("run")
    fleet = start_fleet(prepared(shared_where, "server.openai=true"), shared_where, folder)
    try:
        yield fleet
    finally:
        fleet.stop()
    assert not find_services(folder)
    assert not find_replicas(folder)
    for state in (fleet.state, *(service.state for service in fleet.services)):
        assert not left_over(state.server_id)


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> openai.OpenAI:
    url = openai_url(fleet.servers[0].run_dir)
    assert url is not None
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


def chat(client: openai.OpenAI, **more: object) -> openai.types.chat.ChatCompletion:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(**asked)  # type: ignore[call-overload,no-any-return]


def text(client: openai.OpenAI, **more: object) -> str:
    return chat(client, **more).choices[0].message.content or ""


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_chat_is_answered_with_usage_and_the_text_of_triton_alone(client, fleet):
    answer = chat(client)
    direct = ask(fleet.servers[0], text_input=MESSAGES[0]["content"], use_chat_template=True)

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


def test_a_stop_word_ends_the_text(client):
    whole = text(client)
    word = whole[6:9]

    answer = chat(client, stop=[word])

    assert answer.choices[0].message.content == whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"


def test_more_choices_than_one_are_refused_in_one_sentence(client):
    with pytest.raises(openai.BadRequestError, match="n must be 1; for more choices send the request again"):
        chat(client, n=3, seed=11, temperature=1.0)


def test_log_probabilities_come_with_alternatives(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=8)

    places = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert places is not None
    assert len(places) == 8
    for place in places:  # greedy: the most probable token is the one that was taken
        assert place.logprob == pytest.approx(max(other.logprob for other in place.top_logprobs))
        assert place.logprob < 0


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
    assert len(set(answer.choices[0].message.content or "")) == 1


def test_completions_take_a_prompt_as_triton_does(client, fleet):
    answer = client.completions.create(model=MODEL, prompt="the rat", max_tokens=16, temperature=0)

    assert answer.choices[0].text == ask(fleet.servers[0], text_input="the rat", max_tokens=16).text


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
        ({"messages": [{"role": "user", "content": "the rat " * 5000}]}, "maximum context length"),
    ],
)
def test_a_wrong_request_is_told_why(client, wrong, sentence):
    with pytest.raises(openai.BadRequestError, match=sentence):
        chat(client, **wrong)


def test_a_client_that_leaves_ends_its_request(client, fleet):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True, "nvext": {"annotations": ["strategy:none"]}},
    )
    next(iter(stream))
    stream.close()

    url = fleet.state.metrics_url
    before = read_metrics(url)["lookahead_output_tokens_total"]
    deadline = time.monotonic() + 60
    while (now := read_metrics(url)["lookahead_output_tokens_total"]) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 0 < now - before < 3500


def test_workers_count_drafts_under_the_names_of_vllm(client, fleet):
    chat(client)
    worker = next(service.state for service in fleet.services if service.name == "worker-1")

    metrics = httpx.get(f"http://127.0.0.1:{worker.ports['metrics']}/metrics", trust_env=False).text

    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"):
        assert f"vllm:spec_decode_{name}_total{{" in metrics


def test_every_metric_of_the_dashboard_is_exposed(client, fleet):
    chat(client)
    text = httpx.get(fleet.state.metrics_url, trust_env=False).text
    exposed = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    wanted = {name for query in dashboard_queries() for name in metric_names(query)}

    assert wanted <= exposed


def test_another_process_finds_and_stops_all_of_it(shared_where, tmp_path):
    started = start_fleet(prepared(shared_where, "server.openai=true"), shared_where, tmp_path, detach=True)

    assert [service.name for service in find_services(tmp_path)] == ["front-end", "gateway", "worker-1"]
    assert stop_fleet(tmp_path) == started.state
    assert stop_fleet(tmp_path) is None
    for service in started.services:
        assert not left_over(service.state.server_id)

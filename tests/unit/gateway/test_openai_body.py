"""The gateway reads requests of the OpenAI API and sets the tenant's namespace."""

from __future__ import annotations

import json

import pytest

from pipeline.errors import RequestError
from pipeline.gateway.openai_body import checked_openai
from pipeline.gateway.refusal import FieldError, Refusal


def test_the_openai_api_gets_the_tenants_namespace(alice):
    body = {
        "nvext": {"annotations": ["strategy:trie", "namespace:bob", "namespace:eve"], "greed": True},
        "n": 1,
        "max_tokens": 5,
    }

    checked = checked_openai("chat", json.dumps(body).encode(), alice)

    assert [sent["nvext"] for sent in checked.requests] == [
        {
            "annotations": ["strategy:trie", "max_tokens:5", "namespace:alice/bob"],
            "greed": True,
            "extra_fields": ["engine_data"],
        }
    ]
    assert checked.max_tokens == 5


def test_the_limit_of_tokens_is_that_of_the_forwarded_request(alice):
    """Without its own limit a completion has 16 tokens, as in OpenAI's API, and a chat as many as the engine allows."""
    limits = [{}, {"max_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 7}]

    def limits_of(endpoint):
        return [checked_openai(endpoint, json.dumps(limit).encode(), alice).max_tokens for limit in limits]

    assert limits_of("completions") == [16, 5, 7]
    assert limits_of("chat") == [1 << 20, 5, 7]


@pytest.mark.parametrize("number", [0, -1, 129, 1.5, True, "2"])
def test_a_number_of_choices_that_is_none_is_refused(alice, number):
    with pytest.raises(FieldError, match=rf"^n is {number!r}; it must be a whole number in 1 \.\. 128"):
        checked_openai("chat", json.dumps({"n": number}).encode(), alice)


@pytest.mark.parametrize(("number", "best_of"), [(None, 1), (3, 3)])
def test_the_best_of_all_choices_are_all_choices(alice, number, best_of):
    checked = checked_openai(
        "completions", json.dumps({"prompt": "a", "n": number, "best_of": best_of}).encode(), alice
    )

    assert len(checked.requests) == best_of
    assert all("best_of" not in request for request in checked.requests)


def test_a_conversation_is_known_by_its_beginning_from_the_second_turn_on(alice):
    first, answer, second, third = ({"role": role, "content": role} for role in ("user", "assistant", "user", "user"))

    def conversation(*messages):
        return checked_openai("chat", json.dumps({"messages": messages}).encode(), alice).conversation

    assert conversation(first) is None
    assert conversation(first, answer, second) == conversation(first, answer, second, answer, third) is not None
    assert conversation(first, answer | {"content": "other"}, second) != conversation(first, answer, second)
    assert checked_openai("chat", b'{"messages": []}', alice).conversation is None
    assert checked_openai("completions", b'{"prompt": "Hello"}', alice).conversation is None


@pytest.mark.parametrize("body", [{"nvext": {"cache_salt": "bob"}}, {"cache_salt": "bob"}])
def test_dynamos_own_word_for_a_namespace_is_the_tenants_too(alice, body):
    sent = checked_openai("chat", json.dumps(body).encode(), alice).requests[0]

    assert "namespace:alice/bob" in sent["nvext"]["annotations"]
    assert "cache_salt" not in {*sent, *sent["nvext"]}
    with pytest.raises(Refusal, match="more than 128 bytes"):
        checked_openai("chat", json.dumps({"cache_salt": "b" * 129}).encode(), alice)


@pytest.mark.parametrize("nvext", [3, ["x"], {"annotations": 3}, {"annotations": [3]}])
def test_annotations_that_are_none_are_refused(alice, nvext):
    with pytest.raises(RequestError):
        checked_openai("chat", json.dumps({"nvext": nvext}).encode(), alice)

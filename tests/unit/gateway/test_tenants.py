"""Keys, limits and namespaces of tenants."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.config.schema import GatewayConfig, ServerConfig
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.request_headers import key_of
from pipeline.gateway.tenants import (
    MAX_NAMESPACE_BYTES,
    OPENAI_WEIGHT,
    SHORT_BYTES,
    Tenant,
    Tenants,
    TokenBucket,
    long_bytes,
)
from tests.unit.gateway.gateways import (
    GENERATE,
    MAX_SEQ_LEN,
    Clock,
    api_key,
    behind,
    client_of,
    json_answer,
    spec_of,
    streamed,
)


def tenants_of(*keys, clock=None, **config):
    return Tenants(keys, GatewayConfig(**config), clock or Clock())


def admit(tenants: Tenants, tenant: Tenant, num_output_tokens: int | None, num_prompt_bytes: int = 0) -> None:
    """A request that ends at once."""
    with tenants.admit(tenant, num_prompt_bytes, num_output_tokens, MAX_SEQ_LEN):
        pass


def test_without_keys_everybody_is_one_tenant():
    tenants = tenants_of()

    assert tenants.of_key(None) is tenants.of_key("anything")
    assert tenants.of_key(None).namespace("mine") == "mine"


@pytest.mark.parametrize("key", [None, "", "mallory", "alice ", "\udcff"])
def test_an_unknown_key_is_refused(key):
    with pytest.raises(Refusal) as refused:
        tenants_of(api_key("alice")).of_key(key)
    assert refused.value.status == 401


def test_namespaces_of_two_tenants_never_meet():
    tenants = tenants_of(api_key("a"), api_key("b"))
    names = ["", "x", "/x", "a/x", "b/", "../b"]

    found = {tenant: {tenants.of_key(tenant).namespace(name) for name in names} for tenant in ("a", "b")}

    assert len(found["a"]) == len(found["b"]) == len(names)
    assert not found["a"] & found["b"]


def test_number_and_length_of_namespaces_are_bounded():
    tenant = tenants_of(api_key("a"), max_namespaces=2).of_key("a")
    for name in ("", "x", "refused", "y", "x"):
        namespace = tenant.namespace(name)
        if name != "refused":
            tenant.use(namespace)

    with pytest.raises(Refusal, match="exceeds the limit of"):
        tenant.namespace("z")
    with pytest.raises(Refusal, match="more than 128 bytes"):
        tenant.namespace("é" * (MAX_NAMESPACE_BYTES // 2 + 1))
    assert tenant.namespace("x") == "a/x"
    assert tenant.namespace("") == "a/", "a request without a namespace is none of the names"


@pytest.mark.parametrize("path", [GENERATE, "/v1/chat/completions"])
async def test_a_refused_request_does_not_count_as_a_use_of_its_namespace(path):
    spec = spec_of(api_key("alice", max_tokens_per_minute=400), max_namespaces=1)
    server = behind(lambda request: streamed(id="c-1", choices=[]) if "/v1" in path else json_answer(200, {}))

    async with client_of(server, spec) as client:
        for name, num_bytes, status in (("a", 4000, 400), ("b", 1, 200), ("b", 1, 200), ("c", 1, 400)):
            fields = {"model": "m", "messages": [], "cache_salt": name} if "/v1" in path else {"namespace": name}
            body = fields | {"max_tokens": 1, "user": "x" * num_bytes}
            assert (await client.post(path, json=body, headers={"x-api-key": "alice"})).status_code == status


def test_requests_at_once_are_limited_per_tenant_and_in_all():
    tenants = tenants_of(api_key("a", max_concurrent_requests=1), api_key("b"), max_concurrent_requests=2)
    a, b = tenants.of_key("a"), tenants.of_key("b")
    first, second = ExitStack(), ExitStack()
    for held, tenant in ((first, a), (second, b)):
        held.enter_context(tenants.admit(tenant, 0, 1, MAX_SEQ_LEN))

    with pytest.raises(Refusal) as of_tenant:
        admit(tenants, a, 1)
    with pytest.raises(Refusal) as of_all:
        admit(tenants, b, 1)
    first.close()
    first.close()

    assert (of_tenant.value.status, of_all.value.status) == (429, 503)
    assert of_tenant.value.retry_after_s is not None
    assert (a.num_running, tenants.num_running) == (0, 1)
    with tenants.admit(a, 0, 1, MAX_SEQ_LEN):
        assert tenants.num_running == 2
    assert tenants.num_running == 1


@pytest.mark.parametrize(("of_key", "of_all"), [(2, 3), (3, 2)])
def test_a_request_with_more_choices_than_may_run_at_once_is_refused_for_good(of_key, of_all):
    tenants = tenants_of(api_key("a", max_concurrent_requests=of_key), max_concurrent_requests=of_all)
    with tenants.admit(tenants.of_key("a"), 0, 1, MAX_SEQ_LEN, 2):
        assert tenants.num_running == 2
    with (
        pytest.raises(Refusal, match="3 choices; each counts as a request, and 2 at once") as refused,
        tenants.admit(tenants.of_key("a"), 0, 1, MAX_SEQ_LEN, 3),
    ):
        pass
    assert (refused.value.status, refused.value.retry_after_s) == (400, None)


@pytest.mark.parametrize(("names", "shares"), [("ab", {"a": 4, "b": 2}), ("a", {"a": 8}), ("", {"": 8})])
def test_open_calls_are_shared_among_several_keys_and_limited_in_all(names, shares):
    tenants = tenants_of(*map(api_key, names), max_connections=8)
    for _ in range(2):  # ended calls do not count
        with ExitStack() as held:
            for name, most in shares.items():
                tenant = tenants.of_key(name)
                for _ in range(most):
                    held.enter_context(tenants.open_call(tenant))
                with pytest.raises(Refusal) as refused, tenants.open_call(tenant):
                    pass
                assert refused.value.status == (503 if most == 8 else 429)
                assert (tenant.num_calls, refused.value.retry_after_s) == (most, 1)
            assert tenants.num_calls == sum(shares.values())


def test_long_requests_at_once_are_limited_and_short_ones_are_not():
    tenants = tenants_of(max_body_bytes=1 << 20)
    everyone = tenants.of_key(None)
    with ExitStack() as held:
        for _ in range(8):  # as long as 4 of the longest bodies each
            held.enter_context(tenants.admit(everyone, (1 << 18) + SHORT_BYTES, 1, MAX_SEQ_LEN, 8, 2))
        with pytest.raises(Refusal, match="too many long requests") as of_all:
            admit(tenants, everyone, 1, SHORT_BYTES + 1)
        admit(tenants, everyone, 1, SHORT_BYTES)
    admit(tenants, everyone, 1, (32 << 20) + SHORT_BYTES)
    with (
        pytest.raises(Refusal, match="8 choices of 600000 bytes") as of_one,
        tenants.admit(everyone, 600_000, 1, MAX_SEQ_LEN, 8, 8),
    ):
        pass

    assert (of_all.value.status, of_one.value.status) == (503, 413)


def test_long_prompts_for_the_front_end_are_two_of_the_longest_and_one_key_has_one_of_them():
    tenants = tenants_of(api_key("a"), api_key("b"), max_body_bytes=1 << 20)
    prompt = ((1 << 20) + SHORT_BYTES, 1, MAX_SEQ_LEN, 1, OPENAI_WEIGHT)
    with tenants.admit(tenants.of_key("a"), *prompt):
        with pytest.raises(Refusal, match="of this key") as of_one, tenants.admit(tenants.of_key("a"), *prompt):
            pass
        admit(tenants, tenants.of_key("a"), 1, SHORT_BYTES)
        with tenants.admit(tenants.of_key("b"), *prompt):
            pass
    with tenants.admit(tenants.of_key("a"), *prompt):
        pass

    assert of_one.value.status == 429


def test_tokens_a_minute_are_those_of_prompt_and_output():
    clock = Clock()
    tenants = tenants_of(api_key("a", max_tokens_per_minute=200), clock=clock)
    tenant = tenants.of_key("a")

    admit(tenants, tenant, 97, num_prompt_bytes=10)  # 97 and three for ten bytes
    admit(tenants, tenant, 1 << 20)  # all that the engine holds
    with pytest.raises(Refusal) as refused:
        admit(tenants, tenant, 10)
    clock.now += refused.value.retry_after_s
    admit(tenants, tenant, 10)

    assert (refused.value.status, refused.value.retry_after_s) == (429, 3)


def test_without_max_tokens_a_request_counts_as_all_that_the_engine_holds():
    tenants = tenants_of(api_key("a", max_tokens_per_minute=100))
    tenant = tenants.of_key("a")

    admit(tenants, tenant, None)
    with pytest.raises(Refusal, match=r"used up; send the request again in \d+ s"):
        admit(tenants, tenant, 1)


def test_a_request_for_no_tokens_counts_its_prompt_only():
    tenants = tenants_of(api_key("a", max_tokens_per_minute=100))
    tenant = tenants.of_key("a")

    admit(tenants, tenant, 0, num_prompt_bytes=10)
    admit(tenants, tenant, 97)
    with pytest.raises(Refusal, match="used up"):
        admit(tenants, tenant, 1)


def test_no_retry_after_is_below_a_second():
    bucket = TokenBucket(600, Clock())
    bucket.take(600)
    with pytest.raises(Refusal) as refused:
        bucket.take(1)
    assert refused.value.retry_after_s == 1


def test_only_what_exceeds_64_kib_of_a_body_counts_as_long():
    assert [long_bytes(size) for size in (0, 1 << 16, (1 << 16) + 7)] == [0, 0, 7]


def test_a_request_beyond_a_minutes_tokens_gets_no_retry_after():
    tenants = tenants_of(api_key("a", max_tokens_per_minute=50))

    with pytest.raises(Refusal, match="allows 50 a minute") as refused:
        admit(tenants, tenants.of_key("a"), 51)

    assert (refused.value.status, refused.value.retry_after_s) == (400, None)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 60)), max_size=50))
def test_no_minute_gives_more_than_a_full_bucket_and_its_refill(requests):
    clock = Clock()
    bucket = TokenBucket(60, clock)
    taken: list[tuple[float, int]] = []
    for wait, tokens in requests:
        clock.now += wait
        try:
            bucket.take(tokens)
        except Refusal:
            continue
        taken.append((clock.now, tokens))

    for start, _ in taken:
        assert sum(tokens for when, tokens in taken if start <= when <= start + 60) <= 120 + 1e-6


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_a_refused_request_is_accepted_after_its_retry_after(per_minute, first, second):
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    try:
        bucket.take(first)
        bucket.take(second)
    except Refusal as refusal:
        if refusal.status == 429:
            clock.now += refusal.retry_after_s
            bucket.take(second)


@pytest.mark.parametrize(
    ("header", "key"),
    [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", None), ("k", None), ("Bearer ", None), (None, None)],
)
def test_the_key_of_an_authorization_header(header, key):
    headers = {} if header is None else {"authorization": header}

    assert key_of(headers) == key
    assert key_of(headers | {"x-api-key": "other"}) == (key or "other")


def test_a_key_or_tenant_that_is_listed_twice_is_a_fault_of_the_config():
    with pytest.raises(ValidationError, match="tenant 'a' occurs twice"):
        ServerConfig(api_keys=(api_key("a"), api_key("a")))

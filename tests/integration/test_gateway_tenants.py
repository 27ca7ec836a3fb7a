"""Tenants of a gateway: keys, limits, and closed side channels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import pytest

from pipeline.config.resolution import resolve_config
from pipeline.engine.build import build_engine
from pipeline.errors import ServerError
from pipeline.repository.names import ENSEMBLE
from pipeline.server.client import TextQuery, complete, stream_text
from pipeline.server.metrics import read_metrics
from pipeline.server.server import RunningServer
from tests.integration.gateway_requests import url_of, works
from tests.integration.servers import LONG, PROMPT, TORCH, becomes_ready, prepared, running, settled_metrics
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


ALICE, BOB = "key of alice", "key of bob"


def with_keys(**limits: int) -> str:
    """The setting server.api_keys for alice, with limits, and bob."""
    entries = []
    for tenant, key in (("alice", ALICE), ("bob", BOB)):
        extra = "".join(f", {name}: {value}" for name, value in limits.items()) if tenant == "alice" else ""
        entries.append(f"{{tenant: {tenant}, key_sha256: {hashlib.sha256(key.encode()).hexdigest()}{extra}}}")
    return f"server.api_keys=[{', '.join(entries)}]"


@pytest.fixture(scope="module")
def tenants(tmp_path_factory) -> Iterator[RunningServer]:
    """For alice and bob, with side channels closed. Another command has left other settings beside the engine, as it
    may before a restart."""
    where = own_folders(tmp_path_factory.mktemp("tenants"))
    keys = with_keys(max_concurrent_requests=2, max_tokens_per_minute=100_000)
    # All drafts are sent, whether they pay or not.
    settings = "server.gateway.inner_models=false", "server.side_channel_safe=true", "drafting.planner=fixed"
    tenants = prepared(where, *settings, "server.host=127.0.0.2", keys)
    other = resolve_config("tiny-random-llama", "latency", TORCH, where=where)
    assert build_engine(other, where).outcome == "updated"
    with running(tenants, where, tmp_path_factory.mktemp("run")) as server:
        yield server


def test_without_a_key_there_is_nothing_by_http_or_grpc(tenants):
    assert not works(tenants)
    assert not works(tenants, "a guess")
    with pytest.raises(ServerError, match="API key"):
        complete(TextQuery(PROMPT, 4), tenants.state.grpc_url, "grpc")
    assert works(tenants, ALICE)
    assert becomes_ready(tenants.state)


def ask_as(server: RunningServer, key: str, **fields: object) -> httpx.Response:
    body = {"text_input": PROMPT, "max_tokens": 24, "strategy": "trie"} | fields
    return httpx.post(url_of(server), json=body, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S)


def test_metrics_are_at_the_loopback_device_only(tenants):
    state = tenants.state
    assert state.metrics_url.startswith("http://127.0.0.1:")
    assert "lookahead_requests_total" in read_metrics(state.metrics_url)
    with pytest.raises(ServerError, match="cannot be read"):
        read_metrics(state.metrics_url.replace("127.0.0.1", state.host))


def test_a_tenant_gets_the_id_back_that_it_chose(tenants):
    assert ask_as(tenants, ALICE, id="mine").json()["id"] == "mine"


def test_the_command_lines_key_comes_from_the_environment(tenants, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_API_KEY", ALICE)
    url = {"grpc": tenants.state.grpc_url, "http": tenants.state.http_url}

    texts = {complete(TextQuery(PROMPT, 8), url[p], p).text for p in ("grpc", "http")}  # type: ignore[arg-type]

    assert len(texts) == 1


def test_no_figure_says_how_drafts_fared_where_side_channels_are_closed(tenants):
    statistics = ask_as(tenants, ALICE, return_statistics=True).json()["statistics"]
    assert "draft" not in statistics
    assert "accept" not in statistics
    assert "step" not in statistics
    assert ask_as(tenants, ALICE, return_perf_metrics=True).status_code == 400


def test_streams_come_in_pieces_of_one_size_where_side_channels_are_closed(tenants, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_API_KEY", ALICE)
    for strategy in ("none", "trie"):
        query = TextQuery(PROMPT, 100, strategy=strategy, end_id=-1)
        sizes = [len(chunk.text) for chunk in stream_text(query, tenants.state.grpc_url, "grpc")]
        sizes = [size for size in sizes if size]
        assert len(sizes) > 1
        assert len(set(sizes[:-1])) == 1


def test_a_tenants_limits_are_its_own(tenants, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_API_KEY", ALICE)
    long = TextQuery(PROMPT, LONG, strategy="none", end_id=-1)
    streams = [stream_text(long, tenants.state.grpc_url, "grpc") for _ in range(2)]
    for chunks in streams:
        next(chunks)
    assert ask_as(tenants, ALICE).status_code == 429
    assert ask_as(tenants, BOB).status_code == 200
    for chunks in streams:
        chunks.close()
    wait_for(lambda: ask_as(tenants, ALICE).status_code == 200)
    refused = ask_as(tenants, ALICE, text_input="x" * 400_000)  # four bytes count as a token
    assert refused.status_code == 400
    assert "allows 100000 a minute" in refused.text


def test_an_output_of_one_tenant_is_no_draft_for_another(tenants):
    """By the metrics, which tenants do not see here. A stranger once read digits of another's output off them."""

    def num_accepted(key: str) -> float:
        before = settled_metrics(tenants)
        assert ask_as(tenants, key, text_input="what alice alone may know: 4711 0815", end_id=-1).status_code == 200
        after = settled_metrics(tenants, output_tokens_total=before["lookahead_output_tokens_total"])
        return after["lookahead_accepted_tokens_total"] - before["lookahead_accepted_tokens_total"]

    first, again, of_bob = num_accepted(ALICE), num_accepted(ALICE), num_accepted(BOB)

    assert again > 10 + first  # of 24 tokens: she drafts from her own output
    assert 2 * of_bob < again  # by chance one is right


def test_tenants_cannot_call_the_ensemble(tenants):
    body = {"text_input": PROMPT, "max_tokens": 4}
    headers = {"authorization": f"Bearer {ALICE}"}
    assert (
        httpx.post(url_of(tenants, model=ENSEMBLE), json=body, headers=headers, timeout=PATIENCE_S).status_code == 404
    )

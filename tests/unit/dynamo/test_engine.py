"""Errors of a request in Dynamo's worker: which of them move it to another worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown, HttpError, InvalidArgument

from pipeline.checkpoint.random import byte_tokenizer
from pipeline.dynamo import engine
from pipeline.dynamo.engine import TritonEngine
from pipeline.dynamo.output_text import CardTokenizer
from pipeline.dynamo.spec import HAS_FRONT_END, MEMBERSHIP, Membership
from pipeline.dynamo.triton_stream import TokenChunk
from pipeline.errors import BusyError, EngineError, RequestError, ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS, FILE_KV
from tests.patience import PATIENCE_S
from tests.unit.dynamo.http_triton import serving
from tests.unit.dynamo.requests import FLEET, SPEC, request

TOKENIZER = CardTokenizer(byte_tokenizer(512, 4096).backend_tokenizer)
WITH_DATA = {"extra_args": {"nvext": {"extra_fields": ["engine_data"]}}}
ERRORS = [(RequestError("why"), 400), (BusyError("busy: why"), 503), (RuntimeError("why"), 500), (KeyError("why"), 500)]


class Servers:
    """Responds with chunks, and then raises an error, if there is one."""

    def __init__(self, chunks: Sequence[TokenChunk], error: Exception | None = None) -> None:
        self.chunks, self.error = chunks, error

    async def generate(self, *_: object) -> AsyncGenerator[TokenChunk, None]:
        for chunk in self.chunks:
            yield chunk
        if self.error is not None:
            raise self.error


class Context:
    """In place of Dynamo's."""

    def id(self) -> str:
        return "id"

    def is_stopped(self) -> bool:
        return False


async def chunks_of(servers: Any, asked: dict[str, Any], **spec: Any) -> AsyncGenerator[Any, None]:
    worker = TritonEngine(SPEC.model_copy(update=spec))
    worker._servers, worker._tokenizer = servers, TOKENIZER
    async for chunk in worker.generate(asked, Context()):  # type: ignore[arg-type]
        yield chunk


def answered(servers: Servers, asked: dict[str, Any]) -> list[Any]:
    async def work() -> list[Any]:
        return [chunk async for chunk in chunks_of(servers, asked)]

    return asyncio.run(work())


def ask(num_tokens: int, error: Exception, **fields: Any) -> list[Any]:
    return answered(Servers([TokenChunk([number]) for number in range(num_tokens)], error), request(**fields))


@pytest.mark.parametrize("num_tokens", [0, 3])
@pytest.mark.parametrize(("error", "status"), ERRORS)
def test_an_error_of_the_request_or_the_engine_is_the_last_chunk(num_tokens, error, status):
    *begun, last = ask(num_tokens, error, **WITH_DATA)

    assert len(begun) == num_tokens
    refusal = last["engine_data"]["refusal"]
    assert (last["finish_reason"], refusal["status"]) == ("stop", status)
    assert "why" in refusal["message"]


@pytest.mark.parametrize(("error", "status"), ERRORS)
def test_a_client_that_cannot_read_it_gets_a_status(error, status):
    kind = InvalidArgument if status == 400 else HttpError

    with pytest.raises(kind, match="why") as raised:
        ask(0, error)
    assert getattr(raised.value, "code", 400) == status


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_fault_in_a_request_with_tools_is_a_finish_reason(num_tokens):
    """Dynamo's front end removes `engine_data` from it, and reports an exception as if the worker had died."""
    *begun, last = ask(num_tokens, RuntimeError("why"), annotations=['tools:{"functions": {}, "choice": "auto"}'])

    assert len(begun) == num_tokens
    assert last == {"token_ids": [], "index": 0, "finish_reason": "content_filter"}


@pytest.mark.parametrize("fields", [{}, WITH_DATA])
def test_a_server_that_is_gone_moves_the_request(fields):
    with pytest.raises(EngineShutdown, match="gone"):
        ask(2, EngineError("gone"), **fields)


def test_a_request_that_waits_sends_heartbeats_to_another_machine(monkeypatch):
    monkeypatch.setattr(engine, "_HEARTBEAT_S", 0.01)

    async def chunks(has_other_machines: bool) -> list[Any]:
        found: list[Any] = []
        has_beaten = asyncio.Event()

        class Slow:
            async def generate(self, *_: object) -> AsyncGenerator[TokenChunk, None]:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(has_beaten.wait(), PATIENCE_S if has_other_machines else 0.1)
                yield TokenChunk([1], "length")

        async for chunk in chunks_of(Slow(), request(), has_other_machines=has_other_machines):
            found.append(chunk)
            has_beaten.set()
        return found

    *beats, last = asyncio.run(chunks(True))
    assert last["token_ids"] == [1]
    assert beats
    assert all(beat == {"token_ids": [], "index": 0} for beat in beats)
    assert len(asyncio.run(chunks(False))) == 1


def test_the_usage_counts_the_tokens_in_front_of_a_text():
    """The front end does not know them."""

    class Whole:
        async def generate(self, *_: object) -> AsyncGenerator[TokenChunk, None]:
            yield TokenChunk([1, 2], "length", {})

    async def last_of(*annotations: str) -> Any:
        worker = TritonEngine(SPEC.model_copy(update={"prompt_prefix": (1,)}))
        worker._servers, worker._tokenizer = Whole(), TOKENIZER  # type: ignore[assignment]
        return [chunk async for chunk in worker.generate(request(None, None, None, *annotations), Context())][-1]  # type: ignore[arg-type]

    usage = asyncio.run(last_of("plain_text:true"))["completion_usage"]
    assert usage == {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    assert "completion_usage" not in asyncio.run(last_of())


@pytest.mark.parametrize(
    ("stop_tokens", "more", "expected"),
    [
        ([3], {}, [[1, 2], []]),
        ([1], {}, [[]]),
        ([5], {}, [[1, 2], [3, 4]]),
        ([2, 6], {"min_tokens": 1}, [[1]]),
        ([2, 6], {"min_tokens": 2}, [[1, 2], [3, 4, 5]]),
        ([9], {}, [[1, 2], [3, 4, 5, 6], [7]]),
    ],
)
def test_an_output_ends_before_a_stop_token(stop_tokens, more, expected):
    """The front end would count the later tokens of its chunk in the usage."""

    chunks = [
        TokenChunk([1, 2], log_probs=(-1.0, -2.0)),
        TokenChunk([3, 4, 5, 6], log_probs=(-3.0, -4.0, -5.0, -6.0)),
        TokenChunk([7], "length", {}, (-7.0,)),
    ]
    asked = request(None, more, None, f"stop_token_ids:{json.dumps(stop_tokens)}", output_options={"logprobs": 0})

    found = answered(Servers(chunks), asked)

    assert [chunk["token_ids"] for chunk in found] == expected
    assert [chunk.get("log_probs", []) for chunk in found] == [[-float(t) for t in tokens] for tokens in expected]
    assert found[-1]["finish_reason"] == ("length" if expected[-1] == [7] else "stop")


@pytest.mark.parametrize("top", [(), (((3, -1.0),), ((4, -2.0),))])
def test_an_end_token_has_no_log_probability(top):
    """A client would see an entry with an empty text and the log probability 0, if the token comes with others."""

    servers = Servers([TokenChunk([3, 4, 2], "end_token", {}, (-1.0, -2.0), top)])

    tokens, end = answered(servers, request(output_options={"logprobs": len(top)}))

    assert (tokens["token_ids"], tokens["log_probs"], len(tokens.get("top_logprobs", []))) == (
        [3, 4],
        [-1.0, -2.0],
        len(top),
    )
    assert "finish_reason" not in tokens
    assert (end["token_ids"], end["finish_reason"]) == ([2], "stop")
    assert not {"log_probs", "top_logprobs"} & set(end)


def ids_of(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer(512, 4096).encode(text, add_special_tokens=False)
    return ids


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["text"] for chunk in chunks)


@pytest.mark.parametrize("num_missing", [1, 2, 3])
def test_an_output_that_ends_within_a_character_ends_with_a_replacement_character(num_missing):
    """Dynamo's front end, which gets a text from the worker, would drop it."""
    ids = ids_of("a\U0001f618")[:-num_missing]

    *_, last = found = answered(
        Servers([*(TokenChunk([token]) for token in ids[:-1]), TokenChunk(ids[-1:], "length")]), request()
    )

    assert text_of(found) == "a\ufffd"
    assert last["text"] == "\ufffd"


@pytest.mark.parametrize("num_missing", [1, 2, 3])
def test_an_output_completes_a_character_of_the_prompt(num_missing):
    """Dynamo's own detokenizer panics."""
    ids = ids_of("\U0001f618 a")
    place = len(ids_of("\U0001f618")) - num_missing

    found = answered(Servers([TokenChunk(ids[place:], "length")]), request(ids[:place]))

    assert text_of(found) == "\U0001f618 a"


def test_the_text_of_a_prompt_is_not_text_of_the_output():
    """A replacement character in a prompt looks like an incomplete character."""
    found = answered(Servers([TokenChunk(ids_of(" a"), "length")]), request(ids_of("x\ufffd")))

    assert text_of(found) == " a"


@pytest.mark.parametrize("num_sent", [1, 2, 3])
def test_the_text_of_a_request_that_moved_within_a_character_continues(num_sent):
    prompt, output = ids_of("x"), ids_of("\U0001f618")
    asked = request([*prompt, *output[:num_sent]], {"max_tokens": 10 - num_sent}, None, "max_tokens:10")

    assert text_of(answered(Servers([TokenChunk(output[num_sent:], "length")]), asked)) == "\U0001f618"
    done = request([*prompt, *output[:num_sent]], {"max_tokens": 0}, None, f"max_tokens:{num_sent}")
    assert text_of(answered(Servers([]), done)) == "\ufffd"


def test_log_probabilities_have_the_text_that_each_token_completes():
    ids = ids_of("a\U0001f618")
    log_probs = tuple(-1.0 for _ in ids)

    (chunk,) = answered(Servers([TokenChunk(ids, "length", {}, log_probs)]), request(output_options={"logprobs": 0}))

    assert chunk["text"] == "a\U0001f618"
    assert chunk["tokens"] == ["a", "", "", "", "\U0001f618"]


def test_a_text_has_special_tokens_only_if_the_request_asks_for_them():
    (end,) = byte_tokenizer(512, 4096).convert_tokens_to_ids(["<|eos|>"])
    servers, ignoring = Servers([TokenChunk([*ids_of("a"), end, *ids_of("b")], "length")]), {"ignore_eos": True}

    assert text_of(answered(servers, request(stop=ignoring))) == "ab"
    asked = request(stop=ignoring, output_options={"skip_special_tokens": False})
    assert text_of(answered(servers, asked)) == "a<|eos|>b"


@pytest.mark.parametrize("kept", [True, False])
def test_an_end_token_of_the_front_end_ends_the_output_without_a_text(kept):
    (b,) = ids_of("b")
    asked = request(stop={"stop_token_ids_hidden": [b]}, output_options={"skip_special_tokens": not kept})

    found = answered(Servers([TokenChunk([*ids_of("a"), b, *ids_of("c")]), TokenChunk([7], "length")]), asked)

    assert [(chunk["token_ids"], chunk["text"], chunk["finish_reason"]) for chunk in found] == [
        ([*ids_of("a"), b], "a", "stop")
    ]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("card")
    byte_tokenizer(512, 4096).save_pretrained(folder)
    return str(folder)


async def test_a_worker_lists_its_lease_of_etcd_for_its_guard(card, tmp_path, monkeypatch):
    monkeypatch.delenv(FILE_KV, raising=False)
    monkeypatch.setenv(ETCD_ENDPOINTS, "http://a:1,http://b:2")

    async with serving() as (_, url):
        spec = {"card_dir": card, "triton_urls": (url,), "discovery": "etcd", "entries_path": str(tmp_path / "entries")}
        worker = TritonEngine(SPEC.model_copy(update=spec))
        await worker.start(7)
        await worker.cleanup()
    assert (tmp_path / "entries").read_text() == "".join(
        f'{url}/v3/lease/revoke {{"ID": "7"}}\n' for url in ("http://a:1", "http://b:2")
    )


async def test_a_worker_publishes_its_membership(card, monkeypatch):
    monkeypatch.delenv(FILE_KV, raising=False)
    async with serving() as (_, url):
        worker = TritonEngine(SPEC.model_copy(update={"card_dir": card, "triton_urls": (url,)}))
        published = (await worker.start(1)).runtime_data
        await worker.cleanup()

    assert Membership.model_validate(published[MEMBERSHIP]) == FLEET
    assert published[HAS_FRONT_END] is SPEC.has_front_end


async def test_a_worker_starts_without_its_own_server_if_another_one_is_ready(card, monkeypatch):
    monkeypatch.delenv(FILE_KV, raising=False)

    async def start(*urls: str, timeout_s: float = PATIENCE_S) -> str | None:
        spec = {"card_dir": card, "triton_urls": urls, "startup_timeout_s": timeout_s}
        worker = TritonEngine(SPEC.model_copy(update=spec))
        try:
            return (await worker.start(1)).served_model_name
        finally:
            await worker.cleanup()

    async with serving() as (_, url):
        assert await start("127.0.0.1:1", url) == SPEC.model
    with pytest.raises(ServerError, match=r"Triton at 127.0.0.1:1, 127.0.0.1:2 was not ready"):
        await start("127.0.0.1:1", "127.0.0.1:2", timeout_s=0.1)

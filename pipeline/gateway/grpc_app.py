"""The gateway's gRPC side: health, metadata and inference of Triton's service; its other calls do not exist here."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway.errors import refusal_of, unavailable
from pipeline.gateway.grpc_message import check_request
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.spec import TRITON_GRPC_KEY, GatewaySpec
from pipeline.gateway.tenants import Admission, Tenant, Tenants, bearer_key

SERVICE = "inference.GRPCInferenceService"
_HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
}
# Longest answer of Triton's that is passed on.
_MAX_ANSWER_BYTES = 1 << 30
_CHECK_S = 1.0
_CLOSE_S = 2.0


@dataclass(slots=True)
class _Stream:
    """One client's stream of requests. open: their admissions with the times when they began, oldest first."""

    open: deque[tuple[float, Admission]] = field(default_factory=deque)
    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def close_oldest(self) -> None:
        if self.open:
            self.open.popleft()[1].release()


class GrpcGateway:
    """Serves the gRPC requests of all tenants. channel: to Triton."""

    def __init__(self, spec: GatewaySpec, tenants: Tenants, channel: grpc.aio.Channel) -> None:
        self._spec = spec
        self._tenants = tenants
        self._triton = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._metadata = ((TRITON_GRPC_KEY, spec.triton_key),)

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]] = {
            "ServerLive": (self._health("ServerLive"), pb.ServerLiveRequest),
            "ServerReady": (self._health("ServerReady"), pb.ServerReadyRequest),
            "ModelReady": (self._health("ModelReady"), pb.ModelReadyRequest),
            "ServerMetadata": (self._call("ServerMetadata"), pb.ServerMetadataRequest),
            "ModelMetadata": (self._call("ModelMetadata"), pb.ModelMetadataRequest),
            "ModelInfer": (self._infer, pb.ModelInferRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(act, message.FromString, _serialised)
            for name, (act, message) in unary.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, pb.ModelInferRequest.FromString, _serialised
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _health(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def act(request: Any, context: Any) -> Any:
            async with _refused(context):
                self._require_public(request)
                return await self._passed(getattr(self._triton, name)(request, metadata=self._metadata, timeout=5.0))

        return act

    def _call(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def act(request: Any, context: Any) -> Any:
            async with _refused(context):
                self._tenant(context)
                self._require_public(request)
                return await self._passed(getattr(self._triton, name)(request, metadata=self._metadata, timeout=5.0))

        return act

    async def _infer(self, request: Any, context: Any) -> Any:
        async with _refused(context):
            tenant = self._tenant(context)
            with self._admit(request, tenant):
                call = self._triton.ModelInfer(request, metadata=self._metadata, timeout=self._timeout_s(context))
                answer = await self._passed(call)
                answer.id = answer.id.removeprefix(tenant.prefix)
                return answer

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Requests go on as they come, and responses come back as they come."""
        stream = _Stream()
        async with _refused(context):
            tenant = self._tenant(context)
            call = self._triton.ModelStreamInfer(metadata=self._metadata, timeout=context.time_remaining())
            work = (
                self._receive(stream, call, tenant),
                self._send(requests, stream, call, tenant),
                self._watch(stream),
            )
            tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
            try:
                while (item := await stream.answers.get()) is not None:
                    if isinstance(item, Refusal):
                        raise item
                    yield item
            finally:
                await _end(call, tasks, bool(stream.open))
                while stream.open:
                    stream.close_oldest()

    async def _send(self, requests: AsyncIterator[Any], stream: _Stream, call: Any, tenant: Tenant) -> None:
        async for request in requests:
            try:
                admission = self._admit(request, tenant)
            except Refusal as refusal:
                stream.answers.put_nowait(_error_answer(refusal, request.id.removeprefix(tenant.prefix)))
                continue
            stream.open.append((asyncio.get_running_loop().time(), admission))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # its end is read by `_receive`
                await call.write(request)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.done_writing()

    async def _receive(self, stream: _Stream, call: Any, tenant: Tenant) -> None:
        try:
            async for answer in call:
                failed = bool(answer.error_message)
                if failed:
                    refusal = refusal_of(400, answer.error_message, secrets.token_hex(16))
                    answer.error_message = refusal.sentence
                if failed or answer.infer_response.parameters["triton_final_response"].bool_param:
                    stream.close_oldest()
                answer.infer_response.id = answer.infer_response.id.removeprefix(tenant.prefix)
                stream.answers.put_nowait(answer)
        except grpc.aio.AioRpcError as error:
            stream.answers.put_nowait(_refusal_of_rpc(error))
        stream.answers.put_nowait(None)

    async def _watch(self, stream: _Stream) -> None:
        """End a stream whose oldest request takes too long."""
        longest = self._spec.config.request_timeout_s
        while True:
            await asyncio.sleep(_CHECK_S)
            if stream.open and asyncio.get_running_loop().time() - stream.open[0][0] > longest:
                stream.answers.put_nowait(Refusal(504, f"a request took longer than {longest:g} s"))
                return

    def _admit(self, request: Any, tenant: Tenant) -> Admission:
        self._require_public(request, request.model_name)
        max_tokens = check_request(request, tenant, request.model_name in self._spec.tenant_models)
        return self._tenants.admit(tenant, request.ByteSize(), max_tokens)

    def _require_public(self, request: Any, name: str | None = None) -> None:
        name = getattr(request, "name", None) if name is None else name
        if name is not None and name not in self._spec.public_models:
            raise Refusal(404, f"there is no model {name[:80]!r} here; there is {', '.join(self._spec.public_models)}")

    def _tenant(self, context: Any) -> Tenant:
        metadata = dict(context.invocation_metadata() or ())
        key = bearer_key(_text(metadata.get("authorization"))) or _text(metadata.get("x-api-key"))
        return self._tenants.of_key(key)

    def _timeout_s(self, context: Any) -> float:
        remaining = context.time_remaining()
        longest = self._spec.config.request_timeout_s
        return longest if remaining is None else min(remaining, longest)

    async def _passed(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _refusal_of_rpc(error) from error


async def _end(call: Any, tasks: Sequence[asyncio.Future[None]], has_open: bool) -> None:
    """End a stream to Triton. Triton holds on to a model where a stream without open requests is cancelled, so that
    one is closed instead. tasks: the first one reads its responses."""
    for task in tasks[1:]:
        task.cancel()
    if has_open:
        call.cancel()
    else:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.done_writing()
        await asyncio.wait(tasks[:1], timeout=_CLOSE_S)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _refused:
    """Turns a Refusal in its block into the status of the call."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Refusal):
            return False
        trailing = () if error.retry_after_s is None else (("retry-after", str(error.retry_after_s)),)
        await self._context.abort(error.grpc_code, error.sentence, trailing)
        return True


def _refusal_of_rpc(error: grpc.aio.AioRpcError) -> Refusal:
    if error.code() is grpc.StatusCode.UNAVAILABLE and "busy" not in (error.details() or ""):
        return unavailable()
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Refusal(504, "the request did not end within its time")
    return refusal_of(_HTTP_STATUS.get(error.code(), 500), error.details() or "", secrets.token_hex(16))


def _error_answer(refusal: Refusal, request_id: str) -> Any:
    answer = pb.ModelStreamInferResponse(error_message=refusal.sentence)
    answer.infer_response.id = request_id
    return answer


def _serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def channel_options(max_body_bytes: int) -> list[tuple[str, int]]:
    """Options of the gateway's gRPC server."""
    return [
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.max_send_message_length", _MAX_ANSWER_BYTES),
        ("grpc.max_metadata_size", 32768),
        ("grpc.max_concurrent_streams", 1024),
        ("grpc.so_reuseport", 0),
    ]


def upstream_options() -> list[tuple[str, int]]:
    """Options of the channel to Triton: no proxy, answers of any length, a quick new try after a restart."""
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]

"""gRPC interface of the gateway: health, metadata and inference methods of Triton's services, and no others.

All methods are streams for gRPC, so that a message is read only after the key of its call was checked, and a request
counts as running until its client has read the response: gRPC itself keeps any number of responses for clients that do
not read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from operator import methodcaller
from typing import Any

import anyio
import grpc
from tritonclient.grpc import service_pb2 as pb

from pipeline.gateway.deployment import Deployment, Deployments, stop_request
from pipeline.gateway.generate_body import STOP
from pipeline.gateway.grpc_message import check_request, message_of
from pipeline.gateway.grpc_stream import Stream
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.request_headers import key_of
from pipeline.gateway.spec import GatewaySpec
from pipeline.gateway.tenants import RETRY_AFTER_S, Tenant, Tenants
from pipeline.gateway.upstream_errors import refusal_of, unavailable
from pipeline.request_ids import unique_id

SERVICE = "inference.GRPCInferenceService"
# Responses to a health check, by readiness.
_HEALTH = {True: b"\x08\x01", False: b"\x08\x02"}  # SERVING, NOT_SERVING
_HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
}
# Connections without a call for so long are closed, and clients connect again with their next call. The connection of a
# machine that vanished would otherwise stay for ever.
_MAX_IDLE_MS = 300_000
# Time limit for the first messages of a connection.
_HANDSHAKE_MS = 10_000
# A client with open calls that sends nothing for so long is pinged, and its calls end if no answer arrives within the
# same time. Those of a machine that vanished would stay open for ever.
_KEEPALIVE_MS = 60_000
# Longest response that is forwarded.
_MAX_ANSWER_BYTES = 1 << 30
# Time limit of calls that run no model, and of their message.
_SHORT_S = 5.0
# Calls without a key whose message is read at the same time. Only ModelReady has such a message.
_MAX_WITHOUT_KEY = 32
_SERIALIZED = methodcaller("SerializeToString")


class GrpcGateway:
    """Authenticates and forwards gRPC requests."""

    def __init__(self, spec: GatewaySpec, tenants: Tenants, deployments: Deployments) -> None:
        self._spec, self._tenants, self._deployments = spec, tenants, deployments
        # Open calls without a key. Each call may hold a part of one message, which gRPC itself does not bound.
        self._num_keyless = 0
        self._streams: set[Stream] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            **{name: self._call(name, needs_key=False) for name in ("ServerLive", "ServerReady", "ModelReady")},
            **{name: self._call(name) for name in ("ServerMetadata", "ModelMetadata")},
        }
        methods = {
            name: grpc.stream_unary_rpc_method_handler(act, getattr(pb, f"{name}Request").FromString, _SERIALIZED)
            for name, act in unary.items()
        }
        for name, stream in (("ModelInfer", self._infer), ("ModelStreamInfer", self._stream)):
            methods[name] = grpc.stream_stream_rpc_method_handler(stream, pb.ModelInferRequest.FromString, _SERIALIZED)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def health_handlers(self) -> grpc.GenericRpcHandler:
        """Health checks, which load balancers and Kubernetes call, as Triton has them."""
        check = grpc.stream_unary_rpc_method_handler(self._check)
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})

    async def _check(self, requests: AsyncIterator[Any], context: Any) -> bytes:
        """Readiness of Triton, whichever service the request names. The message is not read."""
        is_ready, deployment = False, self._deployments.current
        with suppress(grpc.aio.AioRpcError), deployment.in_use():
            triton = await deployment.triton()
            options = {"metadata": triton.metadata, "timeout": _SHORT_S}
            is_ready = (await triton.stub.ServerReady(pb.ServerReadyRequest(), **options)).ready
        return _HEALTH[is_ready]

    def _call(self, name: str, needs_key: bool = True) -> Callable[[Any, Any], Awaitable[Any]]:
        """Handler of a method that runs no model. A message without fields is not read."""
        request_type = getattr(pb, f"{name}Request")

        async def act(requests: AsyncIterator[Any], context: Any) -> Any:
            async with _refused(context):
                tenant = self._tenant(context) if needs_key else None
                request = request_type()
                if request.DESCRIPTOR.fields:
                    with self._keyless() if tenant is None else self._tenants.open_call(tenant):
                        request = await message_of(requests, _SHORT_S)
                deployment = self._deployments.current
                if name == "ModelReady" and request.name not in deployment.spec.public_models:
                    return pb.ModelReadyResponse(ready=False)  # as Triton reports an unknown model
                if (model := getattr(request, "name", None)) is not None:
                    deployment.require_public(model)
                with deployment.in_use():
                    triton = await deployment.triton()
                    return await getattr(triton.stub, name)(request, metadata=triton.metadata, timeout=_SHORT_S)

        return act

    async def _infer(self, requests: AsyncIterator[Any], context: Any) -> None:
        async with self._opened(context) as tenant:
            request = await message_of(requests, self._spec.config.body_timeout_s)
            deployment = self._deployments.current
            with self._admitted(request, tenant, deployment) as held:
                timeout_s, triton = self._timeout_s(context), await deployment.triton()
                answer = await triton.stub.ModelInfer(request, metadata=triton.metadata, timeout=timeout_s)
                answer.id = answer.id.removeprefix(tenant.prefix)
                # The call of a client that does not read it stays open, because gRPC cannot cancel a write.
                timer = asyncio.get_running_loop().call_later(timeout_s, held.close)
                try:
                    await context.write(answer)
                finally:
                    timer.cancel()

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Forward requests and responses as they arrive. Responses to different requests come in any order."""
        stream = Stream()
        async with self._opened(context) as tenant:
            reading = stream.run(self._read(requests, stream, tenant))
            stream.run(stream.expire())
            self._streams.add(stream)
            try:
                while (item := await stream.answers.get()) is not None:
                    if isinstance(item, Refusal):
                        raise item
                    yield item
                    stream.answers.task_done()
            finally:
                self._streams.discard(stream)
                reading.cancel()
                # A client's disconnection must not cancel the clean-up.
                await asyncio.shield(asyncio.ensure_future(stream.end()))

    async def end_idle_streams(self) -> None:
        """End streams as soon as they have no running request, until this task is cancelled."""
        while True:
            for stream in self._streams:
                if stream.is_idle and not stream.is_closed:
                    stream.close(unavailable())
            await asyncio.sleep(0.1)

    async def _read(self, requests: AsyncIterator[Any], stream: Stream, tenant: Tenant) -> None:
        """Serve each request of a client in a task of its own, and end the stream after the last one."""
        tasks: list[asyncio.Task[None]] = []
        async for request in requests:
            own_id, deployment = request.id, self._deployments.current
            try:
                held = self._admitted(request, tenant, deployment)
            except Refusal as refusal:
                await stream.put(_error_answer(refusal, own_id))
                continue
            tasks = [task for task in tasks if not task.done()]
            tasks.append(stream.run(self._serve(request, own_id, stream, deployment)))
            tasks[-1].add_done_callback(partial(_release, held))
        if tasks:
            await asyncio.wait(tasks)
        await stream.put(None)

    async def _serve(self, request: Any, own_id: str, stream: Stream, deployment: Deployment) -> None:
        """Forward the responses to one request, over an upstream call of its own. own_id: the client's id of the
        request."""
        longest_s, triton = self._spec.config.request_timeout_s, await deployment.triton()
        stop_of = self._stop_of(request, deployment)
        try:
            with anyio.fail_after(longest_s):
                async with aclosing(triton.responses(request, stop_of)) as answers:
                    async for answer in answers:
                        if answer.error_message:
                            answer.error_message = refusal_of(400, answer.error_message, secrets.token_hex(16)).sentence
                        answer.infer_response.id = own_id
                        await stream.put(answer)
                await stream.answers.join()
        except grpc.aio.AioRpcError as error:
            stream.close(_refusal_of_rpc(error))
        except TimeoutError:
            stream.close(Refusal(504, f"a request took longer than {longest_s:g} s; lower max_tokens"))

    @asynccontextmanager
    async def _opened(self, context: Any) -> AsyncIterator[Tenant]:
        """Authenticate a call, and count it as open until its client has received its end."""
        async with _refused(context):
            tenant = self._tenant(context)
            with self._tenants.open_call(tenant):
                async with _refused(context):
                    yield tenant

    @contextmanager
    def _keyless(self) -> Iterator[None]:
        """Count a call without a key while its message is read. Raises Refusal (503) if there are too many."""
        if self._num_keyless >= _MAX_WITHOUT_KEY:
            raise Refusal(503, "busy: too many gRPC calls without a key are open; send it again", RETRY_AFTER_S)
        self._num_keyless += 1
        try:
            yield
        finally:
            self._num_keyless -= 1

    def _admitted(self, request: Any, tenant: Tenant, deployment: Deployment) -> ExitStack:
        """Check a request and count it as running until the result is closed. Raises Refusal."""
        deployment.require_public(request.model_name)
        spec = deployment.spec
        max_tokens, num_choices, namespace = check_request(request, tenant, request.model_name in spec.tenant_models)
        admitted = self._tenants.admit(tenant, request.ByteSize(), max_tokens, spec.max_seq_len, num_choices)
        with ExitStack() as held:
            held.enter_context(admitted)
            tenant.use(namespace)
            held.enter_context(deployment.in_use())
            return held.pop_all()

    def _stop_of(self, request: Any, deployment: Deployment) -> Callable[[], Any]:
        """Make the id of a request unique. Returns a function that returns the request that stops it; None if it is a
        stop request itself, or its model has no stop requests."""
        if request.model_name not in deployment.spec.tenant_models or any(t.name == STOP for t in request.inputs):
            return lambda: None
        request.id = unique_id(request.id)
        return partial(stop_request, request.model_name, request.id)

    def _tenant(self, context: Any) -> Tenant:
        metadata = context.invocation_metadata() or ()
        headers = {name: value if isinstance(value, str) else value.decode("latin-1") for name, value in metadata}
        return self._tenants.of_key(key_of(headers))

    def _timeout_s(self, context: Any) -> float:
        remaining = context.time_remaining()
        longest = self._spec.config.request_timeout_s
        return longest if remaining is None else min(remaining, longest)


@asynccontextmanager
async def _refused(context: Any) -> AsyncIterator[None]:
    """Convert a Refusal in the block, or an error of the upstream call, to the status of the gRPC call."""
    try:
        yield
        return
    except grpc.aio.AioRpcError as error:
        refusal = _refusal_of_rpc(error)
    except Refusal as error:
        refusal = error
    trailing = () if refusal.retry_after_s is None else (("retry-after", str(refusal.retry_after_s)),)
    await context.abort(refusal.grpc_code, refusal.sentence, trailing)


def _release(held: ExitStack, ended: asyncio.Task[None]) -> None:
    held.close()


def _refusal_of_rpc(error: grpc.aio.AioRpcError) -> Refusal:
    if error.code() is grpc.StatusCode.UNAVAILABLE and "busy" not in (error.details() or ""):
        return unavailable()
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Refusal(
            504, "the request did not end before the deadline of its call; set a later one, or lower max_tokens"
        )
    return refusal_of(_HTTP_STATUS.get(error.code(), 500), error.details() or "", secrets.token_hex(16))


def _error_answer(refusal: Refusal, request_id: str) -> Any:
    answer = pb.ModelStreamInferResponse(error_message=refusal.sentence)
    answer.infer_response.id = request_id
    return answer


def channel_options(max_body_bytes: int, max_connections: int) -> list[tuple[str, int]]:
    """Options of the gateway's gRPC server. max_connections: further connections are closed at once."""
    return [
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.max_send_message_length", _MAX_ANSWER_BYTES),
        ("grpc.max_metadata_size", 32768),
        ("grpc.max_concurrent_streams", 1024),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", _MAX_IDLE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MS),
    ]

"""gRPC interface of the gateway: the health, metadata and inference methods of Triton's service, and no others."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from pipeline.gateway.deployment import Deployment, Deployments
from pipeline.gateway.errors import refusal_of, unavailable
from pipeline.gateway.grpc_message import check_request
from pipeline.gateway.grpc_stream import STOP, Call, OpenRequest, Stream, end_stream, stop_request
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.spec import GatewaySpec
from pipeline.gateway.tenants import Tenant, Tenants, bearer_key
from pipeline.request_ids import chosen_id, unique_id

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
# Longest response that is forwarded.
_MAX_ANSWER_BYTES = 1 << 30
_CHECK_S = 1.0
# Time limit of calls that run no model.
_SHORT_S = 5.0


class GrpcGateway:
    """Authenticates and forwards gRPC requests."""

    def __init__(self, spec: GatewaySpec, tenants: Tenants, deployments: Deployments) -> None:
        self._spec = spec
        self._tenants = tenants
        self._deployments = deployments

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]] = {
            "ServerLive": (self._call("ServerLive", needs_key=False), pb.ServerLiveRequest),
            "ServerReady": (self._call("ServerReady", needs_key=False), pb.ServerReadyRequest),
            "ModelReady": (self._call("ModelReady", needs_key=False), pb.ModelReadyRequest),
            "ServerMetadata": (self._call("ServerMetadata"), pb.ServerMetadataRequest),
            "ModelMetadata": (self._call("ModelMetadata"), pb.ModelMetadataRequest),
            "ModelInfer": (self._infer, pb.ModelInferRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(act, message.FromString, _serialized)
            for name, (act, message) in unary.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, pb.ModelInferRequest.FromString, _serialized
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _call(self, name: str, needs_key: bool = True) -> Callable[[Any, Any], Awaitable[Any]]:
        """Handler of a method that runs no model."""

        async def act(request: Any, context: Any) -> Any:
            async with _refused(context):
                if needs_key:
                    self._tenant(context)
                deployment = self._deployments.current
                if (model := getattr(request, "name", None)) is not None:
                    _require_public(model, deployment)
                triton = await deployment.triton()
                return await getattr(triton.stub, name)(request, metadata=triton.metadata, timeout=_SHORT_S)

        return act

    async def _infer(self, request: Any, context: Any) -> Any:
        async with _refused(context):
            tenant, deployment = self._tenant(context), self._deployments.current
            with self._admitted(request, tenant, deployment):
                timeout_s, triton = self._timeout_s(context), await deployment.triton()
                answer = await triton.stub.ModelInfer(request, metadata=triton.metadata, timeout=timeout_s)
                answer.id = answer.id.removeprefix(tenant.prefix)
                return answer

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Forward requests and responses as they arrive."""
        stream = Stream()
        async with _refused(context):
            tenant = self._tenant(context)
            stream.run(self._send(requests, stream, tenant))
            stream.run(self._watch(stream))
            try:
                while (item := await stream.answers.get()) is not None:
                    if isinstance(item, Refusal):
                        raise item
                    yield item
            finally:
                stream.close()
                # A client's disconnection must not cancel the clean-up.
                await asyncio.shield(asyncio.ensure_future(end_stream(stream)))

    async def _send(self, requests: AsyncIterator[Any], stream: Stream, tenant: Tenant) -> None:
        async for request in requests:
            if stream.is_closed:
                return
            try:
                call = await self._call_for(stream, tenant)
                held = self._admitted(request, tenant, call.deployment)
                stop = self._stop_of(request, call.deployment)
            except Refusal as refusal:
                await stream.put(_error_answer(refusal, request.id.removeprefix(tenant.prefix)))
                continue
            call.open.append(OpenRequest(request.id, asyncio.get_running_loop().time(), held, stop))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # `_receive` handles the end of the call
                await call.rpc.write(request)
        stream.is_sent = True
        if not stream.calls:
            await stream.put(None)
        elif not stream.calls[-1].is_done:
            await stream.calls[-1].finish()

    async def _call_for(self, stream: Stream, tenant: Tenant) -> Call:
        """The stream's open call to the current deployment, opened if necessary."""
        last = stream.calls[-1] if stream.calls else None
        if last is not None and not last.is_done:
            if last.deployment is self._deployments.current:
                return last
            await last.finish()
        while True:
            deployment = self._deployments.current
            triton = await deployment.triton()
            if deployment is self._deployments.current:
                break
        # No await between here and the request's entry in `open`: a call that fails closes the requests in `open`.
        # No deadline: at the client's deadline the client's stream ends, and `end_stream` ends the call without a
        # cancellation.
        call = Call(deployment, triton, triton.stub.ModelStreamInfer(metadata=triton.metadata))
        deployment.num_streams += 1
        stream.calls.append(call)
        call.receiving = stream.run(self._receive(stream, call, tenant))
        return call

    async def _receive(self, stream: Stream, call: Call, tenant: Tenant) -> None:
        end = None
        try:
            async for answer in call.rpc:
                failed = bool(answer.error_message)
                if failed:
                    refusal = refusal_of(400, answer.error_message, secrets.token_hex(16))
                    answer.error_message = refusal.sentence
                if failed or answer.infer_response.parameters["triton_final_response"].bool_param:
                    call.close(answer.infer_response.id)
                answer.infer_response.id = chosen_id(answer.infer_response.id).removeprefix(tenant.prefix)
                await stream.put(answer)
        except grpc.aio.AioRpcError as error:
            if call.open or not call.is_done:  # else the client expects no more from this call
                end = _refusal_of_rpc(error)
        finally:
            call.deployment.num_streams -= 1
        stream.calls.remove(call)
        call.close_all()
        if end is not None or not call.is_done or (stream.is_sent and not stream.calls):
            await stream.put(end)

    async def _watch(self, stream: Stream) -> None:
        """End the stream if its oldest request exceeds the time limit. Finish calls without requests to earlier
        deployments."""
        longest = self._spec.config.request_timeout_s
        while True:
            await asyncio.sleep(_CHECK_S)
            for call in list(stream.calls):
                if call.open and asyncio.get_running_loop().time() - call.open[0].began_s > longest:
                    stream.close(Refusal(504, f"a request took longer than {longest:g} s"))
                    return
                if not (call.open or call.is_done or call.deployment is self._deployments.current):
                    await call.finish()

    def _admitted(self, request: Any, tenant: Tenant, deployment: Deployment) -> ExitStack:
        """Check a request and count it as running until the result is closed. Raises Refusal."""
        _require_public(request.model_name, deployment)
        spec = deployment.spec
        max_tokens = check_request(request, tenant, request.model_name in spec.tenant_models)
        with ExitStack() as held:
            held.enter_context(self._tenants.admit(tenant, request.ByteSize(), max_tokens, spec.max_seq_len))
            held.enter_context(deployment.in_use())
            return held.pop_all()

    def _stop_of(self, request: Any, deployment: Deployment) -> Any:
        """Make the id of a request unique. Returns the request that stops it; None if it is a stop request itself, or
        its model has no stop requests."""
        if request.model_name not in deployment.spec.tenant_models or any(t.name == STOP for t in request.inputs):
            return None
        request.id = unique_id(request.id)
        return stop_request(request)

    def _tenant(self, context: Any) -> Tenant:
        metadata = dict(context.invocation_metadata() or ())
        key = bearer_key(_text(metadata.get("authorization"))) or _text(metadata.get("x-api-key"))
        return self._tenants.of_key(key)

    def _timeout_s(self, context: Any) -> float:
        remaining = context.time_remaining()
        longest = self._spec.config.request_timeout_s
        return longest if remaining is None else min(remaining, longest)


class _refused:
    """Context manager that converts a Refusal, or an error of the upstream call, to the status of the gRPC call."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, grpc.aio.AioRpcError):
            error = _refusal_of_rpc(error)
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


def _require_public(model: str, deployment: Deployment) -> None:
    public = deployment.spec.public_models
    if model not in public:
        raise Refusal(404, f"there is no model {model[:80]!r} here; there is {', '.join(public)}")


def _error_answer(refusal: Refusal, request_id: str) -> Any:
    answer = pb.ModelStreamInferResponse(error_message=refusal.sentence)
    answer.infer_response.id = request_id
    return answer


def _serialized(message: Any) -> bytes:
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

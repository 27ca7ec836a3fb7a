"""HTTP interface of the gateway: routes, authentication, and checks before a request is forwarded."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from pipeline.errors import RequestError
from pipeline.gateway.bodies import BodyReader, Disconnected, parse_json, write_json
from pipeline.gateway.deployment import Deployment, Deployments
from pipeline.gateway.forward import forward
from pipeline.gateway.front_end import FrontEndRequest, refusal_of_prompt
from pipeline.gateway.generate_body import NUM_CHOICES, Types, checked_generate, types_of
from pipeline.gateway.infer_body import checked_infer
from pipeline.gateway.metrics_page import metrics_page
from pipeline.gateway.openai_body import CheckedChoices, checked_openai, checked_responses
from pipeline.gateway.openai_fields import Endpoint
from pipeline.gateway.openai_output import ChoicesOutput, forward_openai
from pipeline.gateway.openapi_page import PAGE
from pipeline.gateway.refusal import FieldError, Refusal
from pipeline.gateway.request_headers import key_of, session_headers, timeout_of, trace_headers
from pipeline.gateway.response_writer import JSON, ResponseWriter, Style
from pipeline.gateway.responses_output import ResponsesOutput
from pipeline.gateway.spec import GatewaySpec
from pipeline.gateway.tenants import OPENAI_WEIGHT, Tenant, Tenants
from pipeline.gateway.upstream import HEADER_LENGTH, Transport, Unreachable, Upstream, UpstreamRequest
from pipeline.gateway.upstream_errors import TOO_LONG_CODE, logger, refusal_of, text_of_body, unavailable, unknown_model

_GET, _POST = ("GET", "HEAD"), ("POST",)
_VERBS = ("generate", "generate_stream", "infer")
# Paths of the front end, and the checks of the gateway's own paths.
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
Check = Callable[[bytes, Tenant, str | None], CheckedChoices]
_CHECKS: dict[str, Check] = {
    **{path: partial(checked_openai, endpoint) for endpoint, path in _PATHS.items()},
    "/v1/responses": checked_responses,
}
# Readiness of Triton and of the OpenAI front end, without a key: for load balancers.
_HEALTH = "/health"
# Time limit of requests that run no model.
_SHORT_S = 5.0
# The front end tokenizes the whole prompt of a longer request, which takes seconds for one of 8 MiB. Triton's model
# refuses it by its beginning if it is too long.
_BYTES_PER_TOKEN = 16
_NAME = re.compile(r"\w[\w.:-]{0,127}", re.ASCII)
Act = Callable[[Request, ResponseWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handler:
    """ASGI application of one path. style: format of errors. act: sends the response, or raises Refusal, or
    RequestError for status 400. methods: allowed HTTP methods; all if empty. They are checked here, because starlette
    refuses others in plain text."""

    style: Style
    act: Act
    methods: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = ResponseWriter(send, self.style)
        try:
            if self.methods and (method := scope["method"]) not in self.methods:
                sentence = f"this path takes {self.methods[0]}, not {method[:20]}"
                raise Refusal(405, sentence, headers={"allow": ", ".join(self.methods)})
            await self.act(Request(scope, receive), answer)
        except Refusal as refusal:
            await answer.refuse(refusal)
        except RequestError as error:
            field = error.field if isinstance(error, FieldError) else None
            await answer.refuse(Refusal(400, str(error), param=field))
        except Disconnected:
            pass
        except Exception:  # a bug of the gateway
            logger.exception("request %s", answer.request_id)
            sentence = f"the gateway failed; its log has the reason under {answer.request_id}"
            await answer.refuse(Refusal(500, sentence))


class HttpGateway:
    """Authenticates, checks and forwards HTTP requests. transport: sends a request to an upstream server."""

    def __init__(self, spec: GatewaySpec, tenants: Tenants, transport: Transport, deployments: Deployments) -> None:
        self._spec = spec
        self._tenants = tenants
        self._transport = transport
        self._deployments = deployments
        self._bodies = BodyReader(spec.config.max_body_bytes, spec.config.body_timeout_s)

    def app(self) -> Router:
        """ASGI application with the public routes. All other paths return 404."""
        routes = []
        if self._spec.openai_port is not None:  # first, because routes are tried in this order
            routes += [
                Route(path, Handler("openai", partial(self._completion, check), _POST))
                for path, check in _CHECKS.items()
            ]
        routes += [
            self._get("/v2/health/live", self._health),
            self._get("/v2/health/ready", self._health),
            self._get("/v2", self._metadata),
            self._get("/openapi.json", self._openapi),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [self._get(base, self._metadata), self._get(f"{base}/ready", self._health)]
            routes += [Route(f"{base}/{verb}", Handler("triton", self._model, _POST)) for verb in _VERBS]
        if self._spec.openai_port is not None:
            routes.append(self._get(_HEALTH, self._openai_health))
            routes += [
                Route(path, Handler("openai", self._models, _GET))
                for path in ("/v1/models", "/v1/models/{name}", "/v1/models/{owner}/{name}")
            ]
        routes.append(Route("/v1/{rest:path}", Handler("openai", _not_found)))
        return Router(routes, default=Handler("triton", _not_found), redirect_slashes=False)

    def metrics_app(self) -> Router:
        """ASGI application of the metrics port."""
        return Router([self._get("/metrics", self._metrics)], default=Handler("triton", _not_found))

    def _get(self, path: str, act: Act) -> Route:
        return Route(path, Handler("triton", act, _GET))

    async def _health(self, request: Request, answer: ResponseWriter) -> None:
        deployment = self._deployments.current
        path = _path(request, deployment)
        lacks_grpc = path.endswith("/ready") and deployment.lacks_grpc()
        await answer.send(b"", {}, 503 if lacks_grpc else await self._status(deployment.http, path))

    async def _openai_health(self, request: Request, answer: ResponseWriter) -> None:
        """Readiness of the front end and of any Triton server: its workers use each that is ready."""
        deployment = self._deployments.current
        if (status := await self._triton_status(deployment)) == 200:
            status = await self._status(deployment.openai, f"/v1/models/{deployment.spec.model}")
            status = 503 if status == 404 else status  # no worker yet
        await answer.send(b"", {}, status)

    async def _triton_status(self, deployment: Deployment) -> int:
        """200 if any Triton server is ready, else the status of the last one."""
        status = 503
        for triton in deployment.http:
            if (status := await self._status([triton], "/v2/health/ready")) == 200:
                break
        return status

    async def _status(self, targets: Sequence[Upstream], path: str) -> int:
        """Status of the response to a request of the gateway; 503 for an error of the server."""
        with suppress(Refusal):
            status, _ = await self._ask(targets, path)
            return status if status < 500 else 503
        return 503

    async def _metadata(self, request: Request, answer: ResponseWriter) -> None:
        self._tenant(request)
        deployment = self._deployments.current
        status, body = await self._ask(deployment.http, _path(request, deployment))
        if status >= 400:
            raise refusal_of(status, text_of_body(body), answer.request_id)
        await answer.send(body, JSON)

    async def _metrics(self, request: Request, answer: ResponseWriter) -> None:
        servers = [triton.metrics for triton in self._deployments.current.spec.tritons]
        page = await metrics_page(servers, lambda server: self._ask([server], "/metrics"))
        await answer.send(page, {"content-type": "text/plain; charset=utf-8"})

    async def _openapi(self, request: Request, answer: ResponseWriter) -> None:
        await answer.send(write_json(PAGE), JSON)

    async def _model(self, request: Request, answer: ResponseWriter) -> None:
        tenant = self._tenant(request)
        _path(request, self._deployments.current)
        body = await self._body(request)
        timeout_s = timeout_of(request, self._spec.config.request_timeout_s)
        deployment = self._deployments.current
        with deployment.in_use():
            path = _path(request, deployment)
            types = await self._types(deployment, request.path_params["model"])
            headers = JSON | trace_headers(request)
            if path.endswith("/infer"):
                checked = checked_infer(body, request.headers.get(HEADER_LENGTH), tenant, types)
                if checked.header_length is not None:
                    headers |= {"content-type": "application/octet-stream", HEADER_LENGTH: str(checked.header_length)}
            else:
                checked = checked_generate(body, tenant, types)
                if checked.num_choices > 1 and path.endswith("/generate"):  # Triton fails after all outputs
                    raise Refusal(400, f"generate returns one output; send {NUM_CHOICES} to generate_stream")
            sent = UpstreamRequest(deployment.http, "POST", path, checked.body, headers, timeout_s, answer.request_id)
            stop = partial(deployment.stop, request.path_params["model"], checked.sent_id)
            max_seq_len = deployment.spec.max_seq_len
            with self._tenants.admit(tenant, len(body), checked.max_tokens, max_seq_len, checked.num_choices):
                tenant.use(checked.namespace)
                await forward(self._transport, sent, request.receive, answer, checked.sent_id, stop)

    async def _types(self, deployment: Deployment, model: str) -> Types:
        """Datatypes of a model's inputs, cached."""
        if model not in deployment.known_types:
            status, body = await self._ask(deployment.http, f"/v2/models/{model}")
            if status != 200:
                raise unavailable()
            deployment.known_types[model] = types_of(parse_json(body))
        return deployment.known_types[model]

    async def _ask(self, targets: Sequence[Upstream], path: str) -> tuple[int, bytes]:
        """Status and body of the response to a request of the gateway. Raises Refusal (503) if there is none."""
        sent = UpstreamRequest(targets, "GET", path, b"", {}, _SHORT_S, secrets.token_hex(16))
        try:
            with anyio.fail_after(sent.timeout_s):
                async with self._transport(sent) as response:
                    return response.status, b"".join([chunk async for chunk in response.chunks])
        except (Unreachable, TimeoutError) as error:
            raise unavailable() from error

    async def _completion(self, check: Check, request: Request, answer: ResponseWriter) -> None:
        tenant = self._tenant(request)
        body = await self._body(request)
        checked = check(body, tenant, self._deployments.current.spec.tool_call_parser)
        timeout_s = timeout_of(request, self._spec.config.request_timeout_s)
        headers = JSON | trace_headers(request) | session_headers(request, tenant, checked.conversation)
        # The worker derives the seed of a request without one from the request id, so each choice needs its own id.
        ids = [answer.request_id, *(secrets.token_hex(16) for _ in checked.requests[1:])]
        deployment = self._deployments.current
        model = f"/v2/models/{deployment.spec.tenant_models[0]}/generate"
        renderer = UpstreamRequest(deployment.http, "POST", model, b"", JSON, _SHORT_S, answer.request_id)
        max_seq_len = deployment.spec.max_seq_len
        admitted = self._tenants.admit(
            tenant, checked.num_bytes, checked.max_tokens, max_seq_len, len(ids), OPENAI_WEIGHT
        )
        with deployment.in_use(), admitted:
            tenant.use(checked.namespace)
            requests = [
                FrontEndRequest(
                    targets=deployment.openai,
                    method="POST",
                    path=_PATHS[checked.endpoint],
                    body=b"",
                    sent=choice,
                    headers=headers,
                    timeout_s=timeout_s,
                    request_id=own_id,
                    triton_status=partial(self._triton_status, deployment),
                    is_served=checked.model == deployment.spec.model,
                    renderer=renderer if checked.endpoint == "chat" else None,
                    is_whole=checked.is_whole,
                    listed_s=deployment.spec.listed_s,
                )
                for choice, own_id in zip(checked.requests, ids, strict=True)
            ]
            if len(body) > _BYTES_PER_TOKEN * max_seq_len:
                longest = max(checked.requests, key=lambda each: len(write_json(each)))
                with suppress(Unreachable, TimeoutError):  # the front end answers later
                    refusal = await refusal_of_prompt(self._transport, renderer, longest)
                    if refusal is not None and refusal.code == TOO_LONG_CODE:
                        raise refusal
            head = checked.response_head
            output = ChoicesOutput(answer, checked) if head is None else ResponsesOutput(answer, head, checked)
            await forward_openai(self._transport, requests, request.receive, output, deployment.spec.max_open_requests)

    async def _models(self, request: Request, answer: ResponseWriter) -> None:
        self._tenant(request)
        names = [request.path_params[part] for part in ("owner", "name") if part in request.path_params]
        if not all(_NAME.fullmatch(name) for name in names):
            raise unknown_model("/".join(names))
        deployment, name = self._deployments.current, "/".join(names)
        status, body = await self._ask(deployment.openai, "/".join(["/v1/models", *names]))
        if status == 404:  # without a worker, the front end has no model
            raise unavailable() if name == deployment.spec.model else unknown_model(name)
        if status >= 400:
            raise refusal_of(status, text_of_body(body), answer.request_id)
        await answer.send(body, JSON)

    def _tenant(self, request: Request) -> Tenant:
        return self._tenants.of_key(key_of(request.headers))

    async def _body(self, request: Request) -> bytes:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            sentence = "compressed bodies are not supported; send the body without Content-Encoding"
            raise Refusal(415, sentence, headers={"accept-encoding": "identity"})
        return await self._bodies.read(request.receive, request.headers.get("content-length"))


def _path(request: Request, deployment: Deployment) -> str:
    """The path of a request to Triton, which is also the upstream one. Raises Refusal (404) for an unknown model or an
    invalid version."""
    model, version = request.path_params.get("model"), request.path_params.get("version")
    if model is not None:
        deployment.require_public(model)
    if version is not None and not (version.isascii() and version.isdecimal() and len(version) < 10):
        raise Refusal(404, f"the version of a model is {version[:20]!r}; it must be a number")
    return str(request.scope["path"]).removesuffix("\n")  # a route's pattern also matches before a line end


async def _not_found(request: Request, answer: ResponseWriter) -> None:
    raise Refusal(404, "there is nothing at this path; see /openapi.json")

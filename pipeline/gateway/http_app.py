"""The gateway's HTTP side: the paths that clients may use, and what is checked before a request is passed on."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files

import httpx
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from pipeline.gateway.answer import Answer, Style
from pipeline.gateway.bodies import Disconnected, read_body
from pipeline.gateway.errors import unavailable
from pipeline.gateway.forward import Onward, Target, forward
from pipeline.gateway.generate_body import Checked, checked_generate
from pipeline.gateway.infer_body import checked_infer
from pipeline.gateway.input_types import Types, types_of
from pipeline.gateway.openai_body import checked_openai
from pipeline.gateway.openai_fields import Endpoint
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.spec import TRITON_KEY_HEADER, GatewaySpec
from pipeline.gateway.tenants import Tenant, Tenants, bearer_key

TIMEOUT_HEADER = "x-request-timeout"
_HEADER_LENGTH = "inference-header-content-length"
_VERBS = ("generate", "generate_stream", "infer")
_OPENAI_POSTS: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_JSON = {"content-type": "application/json"}
# For how long a request for the OpenAI front end waits for a worker in the place of one that died.
_PATIENCE_S = 20.0
_NAME = re.compile(r"\w[\w.:-]{0,127}", re.ASCII)
Act = Callable[[Request, Answer, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handler:
    """An ASGI application for one path. style: of its errors. act: answers, or raises Refusal."""

    style: Style
    act: Act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = secrets.token_hex(16)
        answer = Answer(send, self.style, request_id)
        has_body = scope["method"] == "POST"

        async def watched_receive() -> Message:
            nonlocal has_body
            message = await receive()
            has_body = has_body and message.get("more_body", False)
            return message

        try:
            await self.act(Request(scope, watched_receive), answer, request_id)
        except Refusal as refusal:
            # Else the rest of a body would be read, however long it is.
            await answer.refuse(refusal, closes=has_body)
        except Disconnected:
            pass


class HttpGateway:
    """Serves the HTTP requests of all tenants. client: with which they are passed on."""

    def __init__(self, spec: GatewaySpec, tenants: Tenants, client: httpx.AsyncClient) -> None:
        self._spec = spec
        self._tenants = tenants
        self._client = client
        self._triton = Target(f"http://{spec.triton_http}", {TRITON_KEY_HEADER: spec.triton_key})
        self._openai = None if spec.openai_http is None else Target(f"http://{spec.openai_http}", {})
        self._known_types: dict[str, Types] = {}
        self._page = files("pipeline.gateway").joinpath("openapi.json").read_bytes()

    def app(self) -> Router:
        """The ASGI application. Whatever has no route here is not reachable."""
        routes = [
            self._get("/v2/health/live", self._health),
            self._get("/v2/health/ready", self._health),
            self._get("/v2", self._metadata),
            self._get("/openapi.json", self._openapi),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [self._get(base, self._metadata), self._get(f"{base}/ready", self._health)]
            routes += [Route(f"{base}/{verb}", Handler("triton", self._model), methods=["POST"]) for verb in _VERBS]
        if self._openai is not None:
            routes += [Route(path, Handler("openai", self._completion), methods=["POST"]) for path in _OPENAI_POSTS]
            routes += [
                Route(path, Handler("openai", self._models), methods=["GET"])
                for path in ("/v1/models", "/v1/models/{name}", "/v1/models/{owner}/{name}")
            ]
        return Router(routes, default=Handler("triton", _not_found), redirect_slashes=False)

    def _get(self, path: str, act: Act) -> Route:
        return Route(path, Handler("triton", act), methods=["GET"])

    async def _health(self, request: Request, answer: Answer, request_id: str) -> None:
        path = "/v2/health/live" if request.url.path.endswith("/live") else self._path(request, "/ready")
        try:
            response = await self._client.get(self._triton.url + path, headers=self._triton.headers, timeout=5.0)
            status = response.status_code
        except httpx.HTTPError:
            status = 503
        await answer.start(status if status < 500 else 503, {"content-length": "0"})
        await answer.end()

    async def _metadata(self, request: Request, answer: Answer, request_id: str) -> None:
        self._tenant(request)
        await self._pass_on(request, answer, request_id, self._triton, self._path(request, ""), "GET")

    async def _openapi(self, request: Request, answer: Answer, request_id: str) -> None:
        await answer.start(200, _JSON | {"content-length": str(len(self._page))})
        await answer.piece(self._page)
        await answer.end()

    async def _model(self, request: Request, answer: Answer, request_id: str) -> None:
        tenant = self._tenant(request)
        verb = request.url.path.rpartition("/")[2]
        path = self._path(request, f"/{verb}")
        body = await self._body(request)
        types = await self._types(request.path_params["model"])
        headers = dict(_JSON)
        if verb == "infer":
            checked = checked_infer(body, request.headers.get(_HEADER_LENGTH), tenant, types)
            if checked.header_length is not None:
                headers = {"content-type": "application/octet-stream", _HEADER_LENGTH: str(checked.header_length)}
        else:
            checked = checked_generate(body, tenant, types)
        with self._tenants.admit(tenant, len(body), checked.max_tokens):
            await self._pass_on(request, answer, request_id, self._triton, path, "POST", checked, headers)

    async def _types(self, model: str) -> Types:
        """Datatypes of a model's inputs, asked for once."""
        if model not in self._known_types:
            try:
                url = f"{self._triton.url}/v2/models/{model}"
                response = await self._client.get(url, headers=self._triton.headers, timeout=5.0)
                response.raise_for_status()
            except httpx.HTTPError as error:
                raise unavailable() from error
            self._known_types[model] = types_of(response.json())
        return self._known_types[model]

    async def _completion(self, request: Request, answer: Answer, request_id: str) -> None:
        assert self._openai is not None, "without a front end there is no such route"
        tenant = self._tenant(request)
        body = await self._body(request)
        checked = checked_openai(body, _OPENAI_POSTS[request.url.path], tenant)
        with self._tenants.admit(tenant, len(body), checked.max_tokens):
            await self._pass_on(
                request, answer, request_id, self._openai, request.url.path, "POST", checked, dict(_JSON), _PATIENCE_S
            )

    async def _models(self, request: Request, answer: Answer, request_id: str) -> None:
        assert self._openai is not None, "without a front end there is no such route"
        self._tenant(request)
        names = [request.path_params[part] for part in ("owner", "name") if part in request.path_params]
        if not all(_NAME.fullmatch(name) for name in names):
            raise Refusal(404, "there is no model of this name")
        await self._pass_on(request, answer, request_id, self._openai, "/".join(["/v1/models", *names]), "GET")

    async def _pass_on(
        self,
        request: Request,
        answer: Answer,
        request_id: str,
        target: Target,
        path: str,
        method: str,
        checked: Checked | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = 0.0,
    ) -> None:
        body = b"" if checked is None else checked.body
        onward = Onward(target, method, path, body, headers or {}, self._timeout_s(request), request_id, patience_s)
        await forward(self._client, onward, request.receive, answer)

    def _tenant(self, request: Request) -> Tenant:
        key = bearer_key(request.headers.get("authorization")) or request.headers.get("x-api-key")
        return self._tenants.of_key(key)

    def _path(self, request: Request, end: str) -> str:
        """Path behind the gateway, put together from names that were checked."""
        model, version = request.path_params.get("model"), request.path_params.get("version")
        if model is None:
            return f"/v2/health{end}" if end else "/v2"
        if model not in self._spec.public_models:
            raise Refusal(404, f"there is no model {model[:80]!r} here; there is {', '.join(self._spec.public_models)}")
        if version is not None and not (version.isascii() and version.isdecimal() and len(version) < 10):
            raise Refusal(404, "a version is a number")
        return f"/v2/models/{model}{'' if version is None else f'/versions/{version}'}{end}"

    async def _body(self, request: Request) -> bytes:
        config = self._spec.config
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal(415, "compressed bodies are not taken; send the body as it is")
        length = request.headers.get("content-length")
        return await read_body(request.receive, length, config.max_body_bytes, config.body_timeout_s)

    def _timeout_s(self, request: Request) -> float:
        asked = request.headers.get(TIMEOUT_HEADER)
        longest = self._spec.config.request_timeout_s
        if asked is None:
            return longest
        try:
            timeout_s = float(asked)
        except ValueError:
            timeout_s = float("nan")
        if not timeout_s > 0:
            raise Refusal(400, f"{TIMEOUT_HEADER} is {asked[:40]!r}; it must be a number of seconds above 0")
        return min(timeout_s, longest)


async def _not_found(request: Request, answer: Answer, request_id: str) -> None:
    raise Refusal(404, "there is nothing at this path; see /openapi.json")

"""OpenAPI description of the gateway's HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.gateway.tenants import MAX_NAMESPACE_BYTES

_LARGEST = (1 << 31) - 1
_TEXT: dict[str, Any] = {"type": "string"}
_OBJECT: dict[str, Any] = {"type": "object"}
_SWITCH: dict[str, Any] = {"type": "boolean"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_NUMBER: dict[str, Any] = {"type": "number"}
_WORDS: dict[str, Any] = {"type": "array", "items": _TEXT, "maxItems": 1024}
# Descriptions of errors by status.
_ERRORS = {
    400: "The request is invalid; the error message names the fault.",
    401: "The API key is missing or unknown.",
    403: "A server without API keys serves no web page of another site.",
    404: "The model or path does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is compressed.",
    429: "The key's limit of requests or tokens is reached.",
    500: "Internal error of the server.",
    503: "The server is busy or restarting.",
    504: "The request took longer than its deadline.",
}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": _TEXT | {"enum": ["lookahead_bls"]}}
_TIME_LIMIT = {
    "name": "x-request-timeout",
    "in": "header",
    "required": False,
    "description": "Time limit of the request in seconds; at most server.gateway.request_timeout_s.",
    "schema": _NUMBER | {"exclusiveMinimum": 0, "maximum": 86400},
}
_STREAM = {"text/event-stream": _TEXT}


def _described(description: str, kind: Mapping[str, Any], **limits: Any) -> dict[str, Any]:
    return {**kind, "description": description, **limits}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return _OBJECT | {"required": list(required), "properties": properties}


_GENERATE = _object(
    ("text_input", "max_tokens"),
    text_input=_described("The prompt.", _TEXT),
    max_tokens=_described("Maximum number of output tokens.", _COUNT, minimum=1),
    min_tokens=_described("Minimum number of output tokens.", _COUNT),
    stream=_described("Whether to stream the output; use it with generate_stream.", _SWITCH),
    strategy=_described(
        "Drafting strategy; the profile's by default.", _TEXT, enum=["none", "lookahead", "trie", "hybrid", "auto"]
    ),
    namespace=_described(
        "Namespace of the trie. Requests draft from earlier outputs in the same namespace. Each API key has its own "
        "namespaces.",
        _TEXT,
        maxLength=MAX_NAMESPACE_BYTES // 4,  # a character has up to 4 bytes
    ),
    temperature=_described("Sampling temperature; 0: greedy decoding.", _NUMBER, minimum=0, maximum=100),
    top_k=_described("Number of most probable tokens to sample from; 0: off.", _COUNT),
    top_p=_described("Probability mass of most probable tokens to sample from; 0: off.", _NUMBER, minimum=0, maximum=1),
    min_p=_described("Minimum probability relative to the most probable token; 0: off.", _NUMBER, minimum=0, maximum=1),
    seed=_described("Sampling seed; the same seed gives the same text.", _COUNT, maximum=(1 << 64) - 1),
    stop_words=_described("Stop words; the output ends before the first of them.", _WORDS),
    bad_words=_described("Words that the output must not contain.", _WORDS),
    repetition_penalty=_described("Repetition penalty; 1: off.", _NUMBER, exclusiveMinimum=0, maximum=10),
    presence_penalty=_described("Presence penalty; 0: off.", _NUMBER, minimum=-10, maximum=10),
    frequency_penalty=_described("Frequency penalty; 0: off.", _NUMBER, minimum=-10, maximum=10),
    use_chat_template=_described("Whether to apply the model's chat template to the prompt.", _SWITCH),
    prediction=_described("Expected output, used as a draft.", _TEXT),
    return_statistics=_described("Whether to return statistics of the request.", _SWITCH),
    num_draft_tokens=_described("Maximum number of draft tokens per verify step.", _COUNT),
)
_TENSOR = _object(
    ("name", "shape", "datatype", "data"),
    name=_TEXT,
    shape={"type": "array", "items": _COUNT | {"maximum": 64}, "maxItems": 4},
    datatype=_TEXT | {"enum": ["BYTES", "INT32", "FP32", "BOOL", "UINT64"]},
    data={"type": "array"},
)
_MESSAGE = _object(("role", "content"), role=_TEXT | {"enum": ["system", "user", "assistant"]}, content=_TEXT)
_OPENAI = {
    "max_tokens": {"type": "integer", "minimum": 1},
    "stream": _SWITCH,
    "seed": {"type": "integer"},
}
_SCHEMAS = {
    "TritonError": _object(("error",), error=_TEXT),
    "OpenAIError": _object(
        ("error",),
        error=_object(
            ("message", "type", "code", "param"),
            message=_TEXT,
            type=_TEXT,
            code={"type": ["integer", "string"]},
            param={"type": ["string", "null"]},
        ),
    ),
    "Generate": _GENERATE,
    "Generated": _object(("text_output",), text_output=_TEXT, finish_reason=_TEXT),
    "Infer": _object(("inputs",), inputs={"type": "array", "items": _TENSOR}),
    "Completion": _object(("model", "prompt"), model=_TEXT, prompt=_TEXT, **_OPENAI),
    "Chat": _object(
        ("model", "messages"), model=_TEXT, messages={"type": "array", "minItems": 1, "items": _MESSAGE}, **_OPENAI
    ),
    "Response": _object(
        ("model", "input"),
        model=_TEXT,
        input={"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _MESSAGE}]},
        instructions=_TEXT,
        max_output_tokens={"type": "integer", "minimum": 1},
        stream=_SWITCH,
    ),
}


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _content(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """schemas: by media type."""
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _operation(
    style: str, summary: str, statuses: Sequence[int], description: str, schemas: Mapping[str, Any]
) -> dict[str, Any]:
    """style: format of errors, Triton or OpenAI. statuses: of errors. description, schemas: of the response 200."""
    response = {"description": description} | ({"content": _content(schemas)} if schemas else {})
    errors = {str(status): _ref("responses", f"{style}{status}") for status in statuses}
    return {"summary": summary, "responses": {"200": response, **errors}}


def _check(summary: str, *statuses: int) -> dict[str, Any]:
    """Operation of a health check, which needs no key and has no content."""
    return {"get": _operation("Triton", summary, statuses, "The check passed.", {}) | {"security": []}}


def _metadata(style: str, summary: str, description: str, *members: str) -> dict[str, Any]:
    """Operation that returns a JSON object. members: those that it always has."""
    schemas = {"application/json": _OBJECT | ({"required": list(members)} if members else {})}
    return {"get": _operation(style, summary, (401, 403, 404, 503), description, schemas)}


def _post(style: str, schema: str, summary: str, description: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Operation that runs a model. schema: name of the schema of its body."""
    body = {"required": True, "content": _content({"application/json": _ref("schemas", schema)})}
    operation = _operation(style, summary, tuple(_ERRORS), description, schemas)
    return {"post": operation | {"parameters": [_TIME_LIMIT], "requestBody": body}}


def _error(style: str, status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {"x-request-id": {"schema": _TEXT}}
    if status in (429, 503):
        headers["retry-after"] = {"required": True, "schema": {"type": "integer", "minimum": 1}}
    content = _content({"application/json": _ref("schemas", f"{style}Error")})
    return {"description": _ERRORS[status], "headers": headers, "content": content}


_GENERATED, _ANY = {"application/json": _ref("schemas", "Generated")}, {"application/json": _OBJECT}
_EVENTS = "Server-sent events, each with a piece of the output."
_INFER = "Inference with tensors (KServe v2), for models with one response."
_COMPLETED = "The completion, or server-sent events with stream."
_RESPONSE = "The response, or server-sent events with stream."
_OF_MODEL = {
    "": _metadata("Triton", "Inputs and outputs of a model.", "Metadata as JSON.", "name", "inputs", "outputs"),
    "/ready": _check("Readiness of a model.", 400, 403, 404, 503),
    "/generate": _post("Triton", "Generate", "Generate text in one response.", "The output.", _GENERATED),
    "/generate_stream": _post("Triton", "Generate", "Generate text as a stream.", _EVENTS, _STREAM),
    "/infer": _post("Triton", "Infer", _INFER, "Output tensors.", _ANY),
}
_PATHS = {
    "/v2/health/live": _check("Liveness: whether the server runs.", 403, 503),
    "/v2/health/ready": _check("Readiness: whether all models are ready.", 400, 403, 503),
    "/health": _check("Readiness: whether all models and the OpenAI API are ready.", 400, 403, 503),
    "/v2": _metadata("Triton", "Name and version of the server.", "Metadata as JSON."),
    **{f"/v2/models/{{model}}{rest}": {"parameters": [_MODEL], **item} for rest, item in _OF_MODEL.items()},
    "/v1/models": _metadata("OpenAI", "List of the models of the OpenAI API.", "List of models.", "data"),
    "/v1/completions": _post("OpenAI", "Completion", "OpenAI's completions API.", _COMPLETED, _ANY | _STREAM),
    "/v1/chat/completions": _post("OpenAI", "Chat", "OpenAI's chat completions API.", _COMPLETED, _ANY | _STREAM),
    "/v1/responses": _post("OpenAI", "Response", "OpenAI's Responses API.", _RESPONSE, _ANY | _STREAM),
}
PAGE: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "lookahead",
        "version": "1",
        "summary": "HTTP API of a lookahead server.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "security": [{"key": []}, {}],
    "paths": _PATHS,
    "components": {
        "securitySchemes": {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "API key; required if the server has any (server.api_keys).",
            }
        },
        "schemas": _SCHEMAS,
        "responses": {
            f"{style}{status}": _error(style, status) for style in ("Triton", "OpenAI") for status in _ERRORS
        },
    },
}

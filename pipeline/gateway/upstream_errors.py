"""Client errors for errors of the upstream server. Messages with internal details are logged and replaced."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from pipeline.errors import meaning_of
from pipeline.gateway.annotations import ENGINE_DATA, FAULT, REFUSAL
from pipeline.gateway.bodies import Json
from pipeline.gateway.refusal import Refusal

logger = logging.getLogger("lookahead.gateway")

BUSY_RETRY_S = 2
RESTART_RETRY_S = 5
_LONGEST = 500
RESTARTING = "the server is starting again; send the request again in a moment"
# Internal details: paths, source files, names of memory regions and model instances, traces.
_INTERNAL = re.compile(
    r"internal error|Traceback|\.(?:py|cc|cpp|h|so)\b|(?<![\w<])/(?!>)[\w.-]+/|\bla[0-9a-f]{12}|0x[0-9a-f]{6,}|"
    r"model instance|std::|boost::",
    re.I,
)
# A position in a client's JSON schema, which has the form of a path.
_IN_SCHEMA = re.compile(r"\b(?:Pointer|Resource) '[^']*'")
# Phrase of Dynamo and of Triton's model for a prompt that is too long, which some clients look for, and the code of
# OpenAI's API.
_TOO_LONG = "maximum context length"
TOO_LONG_CODE = "context_length_exceeded"
_UNREADABLE = re.compile(r"^(?:Unable to parse|Expected JSON|[Ff]ailed to (?:parse the request|get request params))")
_PREFIXES = re.compile(r"^(?:\[request id: [^\]]*\] |in ensemble '[^']*', |Validation: )+")
# End of Triton's refusal of a request for one response by a model with streams, and the remedy.
_ONE_RESPONSE = "models with decoupled transaction policy"
_STREAM = "; send it as a gRPC stream or to generate_stream, or use a model with one response, such as tensorrt_llm_bls"
# Dynamo's text around the reason, with a position in the body that the gateway wrote, not in the client's.
_WRONG_FIELD = re.compile(r"^Failed to deserialize the JSON body into the target type: (.*?)(?: at line .*)?$")


def unavailable() -> Refusal:
    """Refusal while the upstream server cannot be reached."""
    return Refusal(503, RESTARTING, RESTART_RETRY_S)


def unknown_model(name: str) -> Refusal:
    """Refusal of a request for a model that the OpenAI front end does not serve."""
    sentence = f"there is no model {name[:80]!r}; GET /v1/models lists the models"
    return Refusal(404, sentence, code="model_not_found", param="model")


def refusal_of(status: int, text: str, request_id: str) -> Refusal:
    """Refusal for an error of the upstream server. text: the upstream message. It is logged if the client does not see
    it."""
    meaning = meaning_of(text)
    if meaning in ("busy", "leaving"):
        return Refusal(503, _shown(text), BUSY_RETRY_S)
    if meaning == "dead":
        logger.error("request %s: %d %s", request_id, status, text)
        return unavailable()
    if _UNREADABLE.search(text):  # Triton returns 500, but the request is wrong
        return Refusal(400, _shown(text))
    is_internal = _INTERNAL.search(_IN_SCHEMA.sub("", text)) is not None
    if status == 501 and not is_internal:  # the model does not support the request
        return Refusal(400, _shown(text))
    if status >= 500 or is_internal:
        logger.error("request %s: %d %s", request_id, status, text)
        if status in (503, 504):
            return Refusal(status, "the server could not answer; send the request again", BUSY_RETRY_S)
        if status >= 500 or meaning == "fault":
            return Refusal(500, f"the server failed on this request; its log has the reason under {request_id}")
        return Refusal(status, f"the server refused this request; its log has the reason under {request_id}")
    return Refusal(status, _shown(text), code=TOO_LONG_CODE if _TOO_LONG in text else None)


def text_of_body(body: bytes) -> str:
    """Message in the body of an error response, in Triton's or OpenAI's format."""
    body = body.removeprefix(b"data:")  # the response may be a single event
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
    return text_of_json(value)


def text_of_json(value: Any) -> str:
    """Message in an error response, in Triton's or OpenAI's format."""
    if isinstance(value, dict):
        error = value.get("error", value)
        if isinstance(error, dict):
            error = error.get("message", "")
        return str(error)
    return str(value)


def refusal_in_event(event: bytes, request_id: str) -> Refusal | None:
    """Refusal for the error in an event of Triton; None if it holds none. Such errors are about invalid requests."""
    if event.startswith((b'data: {"error"', b'data:{"error"')):
        return refusal_of(400, text_of_body(event), request_id)
    return None


def refusal_in_chunk(chunk: Json, request_id: str) -> Refusal | None:
    """Refusal for an error of the front end or of a worker in a chunk; None if it holds none."""
    if (error := chunk.get("error")) is not None:
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 500 <= code < 600 else 400
        return refusal_of(status, text_of_json(chunk), request_id)
    if any(choice.get("finish_reason") == FAULT for choice in chunk.get("choices") or []):
        return refusal_of(500, "a worker failed; its log has the reason", request_id)
    refusal = ((chunk.get("nvext") or {}).get(ENGINE_DATA) or {}).get(REFUSAL)
    return None if refusal is None else refusal_of(refusal["status"], refusal["message"], request_id)


def _shown(text: str) -> str:
    sentence = _WRONG_FIELD.sub(r"\1", _PREFIXES.sub("", text.strip()))[:_LONGEST]
    return sentence + _STREAM if sentence.endswith(_ONE_RESPONSE) else sentence

"""Errors that a user can fix. The command line prints each as one message and exits with 2."""

from __future__ import annotations

import re
from typing import Literal


class UserError(Exception):
    """An error that the user can fix. The text states the error, its place, the value found and the remedy."""


class ConfigError(UserError):
    """A model, a profile or an override is wrong. The message lists all faults, one per line. faults: (setting, text)
    of each fault that belongs to a setting."""

    faults: tuple[tuple[str, str], ...] = ()


class CheckpointError(UserError):
    """Weights or tokenizer cannot be read from the source in the model config."""


class BuildError(UserError):
    """An engine cannot be built, or the artifact on disk cannot be used."""


class EngineError(UserError):
    """A running engine has lost a resource; all its requests have failed."""


class RepositoryError(UserError):
    """The Triton model repository cannot be written or is not valid."""


class ServerError(UserError):
    """The server cannot be found, started, reached or stopped."""


class RequestError(UserError):
    """One request is wrong; other requests are not affected."""


class BusyError(RequestError):
    """The engine's queue is full; the request may be sent again later."""


# Meaning of the text of an error from Triton or our models. refused: the request is wrong. busy: it may be sent again
# later. leaving: the server is ending; another one may serve the request. dead: the process of a model has ended or
# cannot be reached. fault: a bug in this program.
Meaning = Literal["refused", "busy", "leaving", "dead", "fault"]
_PHRASES: dict[Meaning, re.Pattern[str]] = {
    "busy": re.compile(r"\bbusy: |Exceeds maximum queue size|sequences of the engine are in use", re.I),
    "leaving": re.compile(r"is being stopped or exchanged|is shutting down", re.I),
    "dead": re.compile(
        r"Stub process|is not healthy|shm|shared memory|memory region|has no available versions|is not at ready state|"
        r"is not ready|Server not ready|Server is stopping|Server exiting|failed to connect|Broken pipe|Socket closed",
        re.I,
    ),
}
FAULT = "internal error: "
# Marks a refusal that quotes such a phrase from the request.
_REFUSED = "request refused: "


def meaning_of(text: str) -> Meaning:
    """Classify the text of an error. A text with the mark of `refused` is always a refusal."""
    if _REFUSED in text:
        return "refused"
    found = next((meaning for meaning, phrases in _PHRASES.items() if phrases.search(text)), None)
    return found or ("fault" if FAULT in text else "refused")


def refused(sentence: str) -> str:
    """The text of a refusal, with a mark if `meaning_of` would classify it differently."""
    return sentence if meaning_of(sentence) == "refused" else _REFUSED + sentence


def streamed_error(text: str) -> Exception:
    """The exception for an error text within a stream of Triton: RequestError, BusyError, EngineError if the server is
    ending or cannot be reached, or RuntimeError for a bug of the server.

    The text has no error code. Triton sends one if a request has the header `triton_grpc_error`, but up to version 2.67
    it then sometimes uses freed memory and crashes
    (https://github.com/triton-inference-server/server/pull/8708)."""
    meaning = meaning_of(text)
    if meaning in ("leaving", "dead"):
        return EngineError(f"the server has ended or is shutting down: {text}")
    return {"busy": BusyError, "fault": RuntimeError}.get(meaning, RequestError)(text)


def error_number(error: Exception) -> int | None:
    """The errno of an error, None if it has none. Libraries written in Rust have it in the text only."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None

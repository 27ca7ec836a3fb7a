"""Errors that a user can fix. The command line prints each as one message and exits with 2."""

from __future__ import annotations

import re
from typing import Literal


class UserError(Exception):
    """A mistake that the user can fix. The text says what is wrong, where, what was found and what to do."""


class ConfigError(UserError):
    """A model, a profile or an override is wrong. The message holds all faults, one line each. faults: setting and text
    of each fault that has them."""

    faults: tuple[tuple[str, str], ...] = ()


class CheckpointError(UserError):
    """Weights or tokenizer cannot be read from the source in the model config."""


class BuildError(UserError):
    """An engine cannot be built, or the artefact on disk cannot be used."""


class EngineError(UserError):
    """A running engine lost a resource it needs; all its requests have failed."""


class RepositoryError(UserError):
    """The Triton model repository cannot be written or is not valid."""


class ServerError(UserError):
    """The server cannot be found, started, reached or stopped."""


class RequestError(UserError):
    """One request is wrong; other requests are not affected."""


class BusyError(RequestError):
    """The engine's queue is full; the request may be sent again later."""


# What the text of an error of Triton or of our models means. refused: the request is wrong. busy: it may be sent again
# later. leaving: the server ends, another may take the request. dead: the process of a model died or cannot be reached.
# fault: a fault of ours.
Meaning = Literal["refused", "busy", "leaving", "dead", "fault"]
_WORDS: dict[Meaning, re.Pattern[str]] = {
    "busy": re.compile(r"\bbusy: |Exceeds maximum queue size|sequences of the engine are in use", re.I),
    "leaving": re.compile(r"is being stopped or exchanged|is shutting down", re.I),
    "dead": re.compile(
        r"Stub process|is not healthy|shm|shared memory|memory region|has no available versions|is not ready|"
        r"Server is stopping|Server exiting|failed to connect|Broken pipe|Socket closed",
        re.I,
    ),
}
FAULT = "internal error: "
# Begins a refusal that quotes such words of the client's.
_REFUSED = "request refused: "


def meaning_of(text: str) -> Meaning:
    """What the text of an error means. A refusal that is marked (`refused`) is one whatever else it says."""
    if _REFUSED in text:
        return "refused"
    found = next((meaning for meaning, words in _WORDS.items() if words.search(text)), None)
    return found or ("fault" if FAULT in text else "refused")


def refused(sentence: str) -> str:
    """The sentence of a refusal, marked if it holds words that would mean something else."""
    return sentence if meaning_of(sentence) == "refused" else _REFUSED + sentence


def streamed_error(text: str) -> Exception:
    """The error that a text within a stream of Triton's stands for: RequestError, BusyError, EngineError if the server
    is gone or going, or RuntimeError for a fault of the server.

    Such a text comes without a code. Triton sends the code if a request has the header `triton_grpc_error`, but up to
    version 2.67 it then uses freed memory now and then, which ends the server
    (https://github.com/triton-inference-server/server/pull/8708)."""
    meaning = meaning_of(text)
    if meaning in ("leaving", "dead"):
        return EngineError(f"the server is gone or going: {text}")
    return {"busy": BusyError, "fault": RuntimeError}.get(meaning, RequestError)(text)


def error_number(error: Exception) -> int | None:
    """The operating system's number of an error, if it has one. Libraries written in Rust have error classes of their
    own, with the number in the text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None

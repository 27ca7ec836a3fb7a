"""Errors that a user can fix. The command line prints each as one message and exits with 2."""

from __future__ import annotations

import re


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


def error_number(error: Exception) -> int | None:
    """The operating system's number of an error, if it has one. Libraries written in Rust have error classes of their
    own, with the number in the text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None

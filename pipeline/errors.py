"""Errors that a user can fix. The command line prints each as one message and exits with 2."""

from __future__ import annotations


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

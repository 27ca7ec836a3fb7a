"""Errors that a user can fix. The command line prints each as one message and exits with 2."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can fix. The text says what is wrong, where, what was found and what to do."""


class ConfigError(UserError):
    """A model, a profile or an override is wrong. Holds all faults found, one line each. faults: the setting and the
    text of each, where it is known."""

    faults: tuple[tuple[str, str], ...] = ()


class CheckpointError(UserError):
    """Weights or tokenizer cannot be had from where the model config says."""


class BuildError(UserError):
    """An engine cannot be built, or the artefact on disk cannot be used."""


class EngineError(UserError):
    """A running engine has lost what it needs; every request in it has failed."""


class RepositoryError(UserError):
    """The Triton model repository cannot be written or is not valid."""


class ServerError(UserError):
    """The server cannot be found, started, reached or stopped."""


class RequestError(UserError):
    """One request is wrong; no other request is concerned."""


class BusyError(RequestError):
    """The engine's queue is full; the request may be sent again later."""

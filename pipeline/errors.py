"""The errors a user can mend, by who can act on them. The command line turns each into one message and exit code 2."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. The text says what is wrong, where, what was found and what to do."""


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

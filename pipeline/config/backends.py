"""The part of a backend that `resolve_config` uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pipeline.config.faults import Fault
from pipeline.config.hardware import Hardware
from pipeline.config.registry import AUTO, backend_names, load_backend
from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig


class BackendSettings(Protocol):
    """The part of `pipeline.engine.backend.Backend` that checks settings."""

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        """Whether `backend: auto` selects this backend on this machine."""

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        """The device that `device: auto` selects."""

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware | None) -> Iterable[Fault]:
        """Faults of a profile under this backend, for any model. hardware: of this machine; with None the checks that
        need it are skipped."""

    def faults(self, resolved: ResolvedConfig) -> Iterable[Fault]:
        """Faults of a model under a profile. `resolved` may hold other faults."""


def settings_of(backend: str) -> BackendSettings:
    """The backend with this name. Raises KeyError for an unknown one."""
    backend_object: BackendSettings = load_backend(backend)
    return backend_object


def settled_backend(profile: ProfileConfig, hardware: Hardware) -> str:
    """The backend of a profile; for "auto" the first that fits this machine."""
    if profile.backend != AUTO:
        return profile.backend
    return next(name for name in backend_names() if settings_of(name).fits(profile, hardware))

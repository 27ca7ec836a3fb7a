"""What `resolve_config` asks of a backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pipeline.config.faults import Fault
from pipeline.config.hardware import Hardware
from pipeline.config.registry import AUTO, backend_names, load_backend
from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig


class BackendSettings(Protocol):
    """The part of `pipeline.engine.backend.Backend` that settings depend on."""

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        """Whether `backend: auto` takes this backend on this machine."""

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        """The device that `device: auto` stands for."""

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware | None) -> Iterable[Fault]:
        """What is wrong with a profile under this backend, whatever the model. hardware: of this machine; None leaves
        it out."""

    def faults(self, resolved: ResolvedConfig) -> Iterable[Fault]:
        """What is wrong with a model under a profile. `resolved` may hold other faults."""


def settings_of(backend: str) -> BackendSettings:
    """The backend of a name. Raises KeyError for an unknown one."""
    backend_object: BackendSettings = load_backend(backend)
    return backend_object


def settled_backend(profile: ProfileConfig, hardware: Hardware) -> str:
    """The backend of a profile; for "auto" the first that fits this machine."""
    if profile.backend != AUTO:
        return profile.backend
    return next(name for name in backend_names() if settings_of(name).fits(profile, hardware))

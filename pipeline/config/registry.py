"""The engine backends by name.

A backend is one object (`pipeline.engine.backend.Backend`). A line below registers it, or an entry point of the group
`lookahead.backends` in an installed package. It is imported at first use, so lower packages can use this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AfterValidator, Field

from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.faults import Fault
    from pipeline.config.hardware import Hardware
    from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig

AUTO = "auto"
GROUP = "lookahead.backends"
# In the order in which `backend: auto` tries them.
_BUILT_IN = (
    EntryPoint("tensorrt_llm", "pipeline.backends.tensorrt_llm.backend:BACKEND", GROUP),
    EntryPoint("torch", "pipeline.backends.torch:BACKEND", GROUP),
)


class BackendSettings(Protocol):
    """The part of `pipeline.engine.backend.Backend` that checks settings."""

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        """Whether `backend: auto` selects this backend on this machine."""

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        """The device that `device: auto` selects."""

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware) -> Iterable[Fault]:
        """Faults of a profile under this backend, for any model. hardware: of this machine."""

    def faults(self, resolved: ResolvedConfig) -> Iterable[Fault]:
        """Faults of a model under a profile. `resolved` may hold other faults."""


@cache
def backend_points() -> dict[str, EntryPoint]:
    """The entry points of all backends by name; those of installed packages come last. Raises UserError if two have the
    same name."""
    found: dict[str, EntryPoint] = {}
    for point in (*_BUILT_IN, *entry_points(group=GROUP)):
        if point.name in found:
            raise UserError(
                f"Two backends are called {point.name!r}: {found[point.name].value} and {point.value}. Remove the "
                "package of one of them."
            )
        found[point.name] = point
    return found


def backend_names() -> tuple[str, ...]:
    return tuple(backend_points())


def load_backend(name: str) -> Any:
    """Import and return a backend. Raises KeyError for an unknown name."""
    return backend_points()[name].load()


def _known(name: str) -> str:
    if name not in backend_points():
        raise ValueError(f"found {name!r}; the backends are {', '.join(backend_names())}")
    return name


_EXAMPLES = Field(examples=[point.name for point in _BUILT_IN])
BackendName = Annotated[str, AfterValidator(_known), _EXAMPLES]
BackendOrAuto = Annotated[str, AfterValidator(lambda name: name if name == AUTO else _known(name)), _EXAMPLES]

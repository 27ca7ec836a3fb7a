"""The backends by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from pipeline.config import registry
from pipeline.config.registry import backend_names
from pipeline.errors import UserError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    registry.backend_points.cache_clear()
    yield
    registry.backend_points.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    points = [EntryPoint(name, f"{name}_{number}:BACKEND", registry.GROUP) for number, name in enumerate(names)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_backends_of_installed_packages_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mine")
    assert backend_names() == ("tensorrt_llm", "torch", "mine")


@pytest.mark.parametrize("names", [("torch",), ("mine", "mine")])
def test_two_backends_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    install(monkeypatch, *names)
    with pytest.raises(UserError, match=rf"Two backends are called '{names[-1]}': .* and {names[-1]}_\d:BACKEND"):
        backend_names()

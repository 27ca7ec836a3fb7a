"""When a service counts as failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.server import watch as module
from pipeline.server.watch import ServiceWatch


class FakeService:
    """A service with a URL, what it needs, and the clock. statuses: of the responses by URL; None for no response."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, needs: Sequence[Sequence[str]]) -> None:
        self.now = 0.0
        self.statuses: dict[str, int | None] = {"http://own": 200, "http://worker": 200, "http://etcd": 200}
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "status_of", lambda url: self.statuses.get(url))
        self.watch = ServiceWatch("http://own", needs)

    def fails_after(self, status: int | None) -> int | None:
        """Seconds until a service with this status, checked once a second, is found to fail; None without an end."""
        self.statuses["http://own"] = status
        for seconds in range(300):
            self.now += 1.0
            if self.watch.fails():
                return seconds
        return None


NEEDS = [["http://other", "http://worker"], ["http://etcd"]]


def test_a_service_that_no_longer_answers_fails(monkeypatch):
    for needs in ([], NEEDS):
        service = FakeService(monkeypatch, needs)
        assert service.fails_after(200) is None
        assert service.fails_after(None) in range(24, 37)


@pytest.mark.parametrize("missing", ["http://worker", "http://etcd"])
def test_a_service_fails_with_an_error_only_if_all_that_it_needs_is_there(monkeypatch, missing):
    service = FakeService(monkeypatch, NEEDS)
    assert service.fails_after(200) is None
    service.statuses[missing] = None
    assert service.fails_after(404) is None
    service.statuses[missing] = 200
    assert service.fails_after(404) in range(24, 37)


def test_each_status_of_a_service_without_needs_is_right(monkeypatch):
    assert FakeService(monkeypatch, []).fails_after(503) is None


def test_a_service_has_time_to_start(monkeypatch):
    assert FakeService(monkeypatch, NEEDS).fails_after(None) in range(114, 127)
    assert not ServiceWatch("", []).fails()

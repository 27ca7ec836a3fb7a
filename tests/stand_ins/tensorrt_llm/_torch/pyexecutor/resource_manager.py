"""The base class of resource managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BaseResourceManager(ABC):
    @abstractmethod
    def get_max_resource_count(self) -> int: ...

    @abstractmethod
    def get_needed_resource_to_completion(self, request: Any) -> int: ...

    def add_dummy_requests(self, request_ids: list[int]) -> None:
        return None

    def prepare_resources(self, scheduled_batch: Any) -> None:
        return None

    def update_resources(self, scheduled_batch: Any) -> None:
        return None

    def free_resources(self, request: Any) -> None:
        return None

    def shutdown(self) -> None:
        return None

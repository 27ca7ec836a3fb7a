"""The base class of resource managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BaseResourceManager(ABC):
    @abstractmethod
    def get_max_resource_count(self) -> int: ...

    @abstractmethod
    def get_needed_resource_to_completion(self, request: Any) -> int: ...

    @abstractmethod
    def prepare_resources(self, scheduled_batch: Any) -> None: ...

    @abstractmethod
    def update_resources(self, scheduled_batch: Any) -> None: ...

    @abstractmethod
    def free_resources(self, request: Any) -> None: ...

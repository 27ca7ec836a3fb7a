"""The base class of drafters, as the 1.3.0rc3 tree has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final


class Drafter(ABC):
    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_draft_len = max_draft_len
        self.max_total_draft_tokens = max_total_draft_tokens
        self._padded_len = max_total_draft_tokens
        self.max_concurrency = max_concurrency
        self.draft_len_schedule = draft_len_schedule

    @abstractmethod
    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None: ...

    @final
    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        pad(scheduled_requests, self._padded_len)


def pad(scheduled_requests: Any, length: int) -> None:
    for request in scheduled_requests.generation_requests:
        request.py_draft_tokens += [0] * (length - len(request.py_draft_tokens))

"""The drafter that TensorRT-LLM's PyTorch engine calls once per step (contract: `user_provided`). NOT RUN with it.

Imported only where TensorRT-LLM is: the classes below derive from its own, at module level so that they can be pickled
for its worker processes. Drafter and resource manager share one `ChainDrafts`, and go into one config object together.
"""

from __future__ import annotations

import inspect
from typing import Any

from tensorrt_llm._torch.pyexecutor.resource_manager import BaseResourceManager
from tensorrt_llm._torch.speculative.drafter import Drafter

from pipeline.llmapi.drafts import ChainDrafts, room_for_drafts


class TrieDrafter(Drafter):  # type: ignore[misc]  # TensorRT-LLM has no types here
    """Writes `py_draft_tokens` of every running request."""

    def __init__(self, drafts: ChainDrafts) -> None:
        max_draft_len = drafts.settings.max_draft_len
        wanted = {"max_draft_len": max_draft_len, "max_total_draft_tokens": max_draft_len}
        # Older releases take fewer arguments.
        taken = inspect.signature(Drafter.__init__).parameters
        super().__init__(**{name: value for name, value in wanted.items() if name in taken})
        self.drafts = drafts

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Before every forward pass. In an order that is the same on every rank."""
        self.drafts.next_step()
        for request in sorted(scheduled_requests.generation_requests, key=lambda request: request.request_id):
            tokens = request.get_tokens(0)
            room = room_for_drafts(len(tokens), request.py_orig_prompt_len, request.py_max_new_tokens)
            request.py_draft_tokens = self.drafts.draft(request.request_id, tokens, request.py_orig_prompt_len, room)


class TrieResources(BaseResourceManager):  # type: ignore[misc]  # TensorRT-LLM has no types here
    """Takes no memory that is counted; it is told when a request ends."""

    def __init__(self, drafts: ChainDrafts, max_num_requests: int) -> None:
        self.drafts = drafts
        self.max_num_requests = max_num_requests

    def get_max_resource_count(self) -> int:
        return self.max_num_requests

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return 0

    def prepare_resources(self, scheduled_batch: Any) -> None:
        """Nothing to prepare."""

    def update_resources(self, scheduled_batch: Any) -> None:
        """Nothing to update."""

    def free_resources(self, request: Any) -> None:
        """The request has ended: its last tokens are learnt, its own text is forgotten."""
        self.drafts.finish(request.request_id, request.get_tokens(0))

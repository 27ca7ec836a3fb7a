"""The drafter that TensorRT-LLM's PyTorch engine calls once per step (contract: `user_provided`). NOT RUN with it.

The module needs TensorRT-LLM, because its classes derive from TensorRT-LLM's. They are at module level, so that worker
processes can unpickle them. Drafter and resource manager share one `ChainDrafts`; both belong into one config object,
so that they are pickled together.
"""

from __future__ import annotations

import inspect
from typing import Any

from tensorrt_llm._torch.pyexecutor.resource_manager import BaseResourceManager
from tensorrt_llm._torch.speculative.drafter import Drafter

from pipeline.llmapi.drafts import ChainDrafts, room_for_drafts

# Names of the chain length in different releases: argument and attribute of the base class.
_LENGTHS = ("max_draft_len", "max_draft_tokens", "max_total_draft_tokens")


class TrieDrafter(Drafter):  # type: ignore[misc]  # TensorRT-LLM has no types here
    """Writes `py_draft_tokens` of every running request."""

    # TensorRT-LLM pads all chains to one length. Newer releases reserve KV cache for the padding only with this flag.
    _needs_padding_kv_extension = True

    def __init__(self, drafts: ChainDrafts) -> None:
        longest = drafts.settings.max_draft_len
        taken = inspect.signature(Drafter.__init__).parameters
        super().__init__(**{name: longest for name in _LENGTHS if name in taken})
        for name in _LENGTHS:  # padding reads an attribute that some constructors do not set
            setattr(self, name, longest)
        self.drafts = drafts

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Draft for all running requests, in the same order on every rank. Called before every forward pass."""
        self.drafts.next_step()
        for request in sorted(scheduled_requests.generation_requests, key=lambda request: request.request_id):
            tokens = request.get_tokens(0)
            room = room_for_drafts(len(tokens), request.py_orig_prompt_len, request.py_max_new_tokens)
            request.py_draft_tokens = self.drafts.draft(request.request_id, tokens, request.py_orig_prompt_len, room)


class TrieResources(BaseResourceManager):  # type: ignore[misc]  # TensorRT-LLM has no types here
    """Resource manager without resources, which TensorRT-LLM calls when a request ends."""

    def __init__(self, drafts: ChainDrafts, max_num_requests: int) -> None:
        self.drafts = drafts
        self.max_num_requests = max_num_requests

    def get_max_resource_count(self) -> int:
        return self.max_num_requests

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return 0

    def free_resources(self, request: Any) -> None:
        """Learn the last tokens of a request that has ended, and forget the request."""
        self.drafts.finish(request.request_id, request.get_tokens(0))

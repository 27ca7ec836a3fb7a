"""Draft chains from our draft sources for requests that TensorRT-LLM's LLM API decodes.

TensorRT-LLM passes every running request once per step, with all its tokens; the sources learn from the new ones. The
drafts depend on tokens and their order only, so all ranks of a model on several GPUs draft the same. Nothing here
raises: a failing draft source costs speed only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import kinds_on
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.request import StepResult, as_token_ids
from pipeline.decoding.session import outcome_of_tokens
from pipeline.decoding.tree import EMPTY_TREE, DraftTree
from pipeline.llmapi.settings import DraftSettings
from pipeline.triton_models.call_planning import chain_budget, main_chain

logger = logging.getLogger(__name__)

# Steps after which an absent request is forgotten. If it was only paused, it returns as a new request.
FORGET_AFTER = 4096
# Upper bound: the sources only compare and store token ids.
_ANY_VOCABULARY = 1 << 30


@dataclass(slots=True)
class _RunningRequest:
    """A running request. num_tokens: tokens that the sources have learned. tree: the last draft."""

    num_tokens: int
    tree: DraftTree = field(default_factory=lambda: EMPTY_TREE)
    last_seen: int = 0


class ChainDrafts:
    """Draft sources for the requests of one model. Not thread safe. Pickling keeps the settings, and drops the learned
    state."""

    def __init__(self, settings: DraftSettings) -> None:
        self.settings = settings
        self.num_failures = 0
        self._drafter: Drafter | None = None
        self._running: dict[int, _RunningRequest] = {}
        self._num_steps = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"])  # type: ignore[misc]

    def next_step(self) -> None:
        """Begin a step. Forgets requests that have been absent for FORGET_AFTER steps."""
        self._num_steps += 1
        if self._num_steps % FORGET_AFTER == 0:
            limit = self._num_steps - FORGET_AFTER
            for request_id in [key for key, running in self._running.items() if running.last_seen <= limit]:
                self.stop(request_id)

    def draft(self, request_id: int, tokens: Sequence[int], prompt_len: int, max_len: int) -> list[int]:
        """Return the draft chain, at most max_len tokens; may be empty. tokens: prompt and output so far."""
        try:
            return self._draft(request_id, tokens, prompt_len, min(max_len, self.settings.max_draft_len))
        except Exception:
            self._failed(request_id)
            return []

    def finish(self, request_id: int, tokens: Sequence[int]) -> None:
        """Learn the last tokens of a request that has ended, and forget the request. tokens: prompt and output."""
        try:
            if request_id in self._running:
                self._learn(request_id, tokens)
        except Exception:
            self._failed(request_id)
        self.stop(request_id)

    def stop(self, request_id: int) -> None:
        """Forget a request. A second call does nothing."""
        if self._running.pop(request_id, None) is not None:
            self._sources().stop(str(request_id))

    def _draft(self, request_id: int, tokens: Sequence[int], prompt_len: int, max_len: int) -> list[int]:
        running = self._running.get(request_id)
        if running is not None and len(tokens) < running.num_tokens:  # another request with the same id
            self.stop(request_id)
            running = None
        if running is None:
            start = as_token_ids(tokens[:prompt_len])
            self._sources().start(str(request_id), start, "", self._names())
            running = self._running[request_id] = _RunningRequest(len(start))
        running.last_seen = self._num_steps
        self._learn(request_id, tokens)
        if max_len <= 0:
            return []
        proposed = self._sources().propose(str(request_id), as_token_ids(tokens), chain_budget(max_len))
        running.tree = main_chain(proposed, max_len)
        chain: list[int] = running.tree.token_ids.tolist()
        return chain

    def _learn(self, request_id: int, tokens: Sequence[int]) -> None:
        running = self._running[request_id]
        before, new = running.num_tokens, list(tokens[running.num_tokens :])
        if not new:
            return
        outcome = outcome_of_tokens(running.tree, new)
        step = StepResult(as_token_ids(tokens[:before]), running.tree, outcome.nodes, new)
        running.num_tokens, running.tree = len(tokens), EMPTY_TREE
        self._sources().update(str(request_id), step)

    def _sources(self) -> Drafter:
        """The draft sources, created at first use in the process that drafts."""
        if self._drafter is None:
            self._drafter = create_drafter(self.settings.sources, LOOKAHEAD_OFF, _ANY_VOCABULARY, kinds_on("bls"))
        return self._drafter

    def _names(self) -> frozenset[str]:
        return frozenset(source.name for source in self._sources().sources)

    def _failed(self, request_id: int) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            logger.exception("drafting failed; the request continues without drafts; further failures are not logged")
        self.stop(request_id)


def room_for_drafts(num_tokens: int, prompt_len: int, max_new_tokens: int) -> int:
    """Limit of draft tokens for a request, because the target adds one token to the accepted ones."""
    return max(0, prompt_len + max_new_tokens - num_tokens - 1)

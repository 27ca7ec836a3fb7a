"""Draft counts of a worker under the names that vLLM gives them, which load generators such as AIPerf read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter

PREFIX = "vllm:"
# Number of draft positions with separate counters.
_NUM_POSITIONS = 16


class DraftMetrics:
    """Counters in a separate registry. Used from one thread."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._drafts = self._counter("num_drafts", "Verify steps with drafts.", model)
        self._draft_tokens = self._counter("num_draft_tokens", "Draft tokens sent for verification.", model)
        self._accepted = self._counter("num_accepted_tokens", "Accepted draft tokens.", model)
        per_position = Counter(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position in the draft.",
            ("model_name", "position"),
            registry=self.registry,
        )
        self._positions = [per_position.labels(model, str(place)) for place in range(_NUM_POSITIONS)]

    def record(self, statistics: Mapping[str, Any]) -> None:
        """Count one request. statistics: as `lookahead_bls` returns them."""
        lengths = [length - 1 for length in statistics["acceptance_lengths"] if length > 1]
        self._drafts.inc(len(statistics["acceptance_lengths"]) if statistics["num_draft_tokens"] else 0)
        self._draft_tokens.inc(statistics["num_draft_tokens"])
        self._accepted.inc(statistics["num_accepted_tokens"])
        for place, counter in enumerate(self._positions):
            counter.inc(sum(length > place for length in lengths))

    def _counter(self, name: str, description: str, model: str) -> Any:
        counter = Counter(f"{PREFIX}spec_decode_{name}", description, ("model_name",), registry=self.registry)
        return counter.labels(model)

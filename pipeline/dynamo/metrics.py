"""Draft metrics of a worker under vLLM's names, which load generators such as AIPerf read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter

PREFIX = "vllm:"
# Number of draft positions with separate counters.
_NUM_POSITIONS = 16


class DraftMetrics:
    """Draft counters of a worker, in a separate registry. Not thread safe."""

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
        self._positions = [per_position.labels(model, str(position)) for position in range(_NUM_POSITIONS)]

    def record(self, statistics: Mapping[str, Any]) -> None:
        """Add one request. statistics: output `statistics` of `lookahead_bls`."""
        lengths = [length - 1 for length in statistics["acceptance_lengths"] if length > 1]
        self._drafts.inc(statistics["num_drafted_steps"])
        self._draft_tokens.inc(statistics["num_draft_tokens"])
        self._accepted.inc(statistics["num_accepted_tokens"])
        for position, counter in enumerate(self._positions):
            counter.inc(sum(length > position for length in lengths))

    def _counter(self, name: str, description: str, model: str) -> Any:
        counter = Counter(f"{PREFIX}spec_decode_{name}", description, ("model_name",), registry=self.registry)
        return counter.labels(model)


def speculative_decoding(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Draft statistics of one request in vLLM's format. statistics: output `statistics` of `lookahead_bls`. The first
    step, which is the prefill, counts only if it accepted drafts; vLLM's has none. Tokens that a grammar forced count
    as accepted drafts."""
    lengths = statistics["acceptance_lengths"]
    accepted = [length - 1 for length in (lengths[1:] if lengths[:1] == [1] else lengths)]
    num_accepted, num_steps = sum(accepted), len(accepted)
    num_drafted = max(statistics["num_draft_tokens"], num_accepted)
    return {
        "mean_acceptance_length": 1 + num_accepted / max(num_steps, 1),
        "draft_acceptance_rate": num_accepted / max(num_drafted, 1),
        "acceptance_histogram": [accepted.count(number) for number in range(max(accepted, default=0) + 1)],
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_steps": num_steps,
    }

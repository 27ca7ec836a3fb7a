"""Metrics of the running servers, read from their metrics ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pipeline.errors import ServerError


def read_metrics(url: str, prefix: str = "lookahead_") -> dict[str, float]:
    """Samples of all metrics with a prefix by name, summed over labels, without histogram buckets. Raises ServerError
    if the server does not return them, for example while it starts again."""
    values: dict[str, float] = {}
    try:
        response = httpx.get(url, timeout=5.0, trust_env=False)
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}")
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                if sample.name.startswith(prefix) and "le" not in sample.labels:
                    values[sample.name] = values.get(sample.name, 0.0) + sample.value
    except (httpx.HTTPError, ValueError) as error:  # the latter also for the page of another program
        raise ServerError(f"The metrics at {url} cannot be read: {error}.") from error
    return values


def read_figures(urls: Sequence[str]) -> dict[str, float]:
    """Sums and ratios of the main metrics over all servers, by display name. Ratios without data are omitted."""
    values: Counter[str] = Counter()
    for url in urls:
        values.update(read_metrics(url))
    figures = {
        "requests": values.get("lookahead_requests_total", 0.0),
        "output tokens": values.get("lookahead_output_tokens_total", 0.0),
        "trie nodes": values.get("lookahead_trie_nodes", 0.0),
    }
    ratios = {
        "tokens per step": ("lookahead_acceptance_length_sum", "lookahead_acceptance_length_count"),
        "accepted share of drafts": ("lookahead_accepted_tokens_total", "lookahead_draft_tokens_total"),
        "mean time to first token (s)": (
            "lookahead_time_to_first_token_seconds_sum",
            "lookahead_time_to_first_token_seconds_count",
        ),
    }
    for name, (above, below) in ratios.items():
        if values.get(below):
            figures[name] = values[above] / values[below]
    return figures

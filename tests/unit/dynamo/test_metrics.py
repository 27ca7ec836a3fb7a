"""Draft counts under vLLM's names."""

from __future__ import annotations

from prometheus_client import generate_latest

from pipeline.dynamo.metrics import DraftMetrics


def test_counts_add_up_by_position():
    metrics = DraftMetrics("m")

    metrics.record({"acceptance_lengths": [1, 3, 2], "num_draft_tokens": 9, "num_accepted_tokens": 3})
    metrics.record({"acceptance_lengths": [1, 1], "num_draft_tokens": 0, "num_accepted_tokens": 0})

    text = generate_latest(metrics.registry).decode()
    for line in (
        'vllm:spec_decode_num_drafts_total{model_name="m"} 3.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 9.0',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 3.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 2.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 1.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 0.0',
    ):
        assert line in text

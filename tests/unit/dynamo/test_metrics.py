"""Draft counts under vLLM's names."""

from __future__ import annotations

from prometheus_client import generate_latest

from pipeline.dynamo.metrics import DraftMetrics, speculative_decoding


def test_counts_add_up_by_position():
    metrics = DraftMetrics("m")

    counts = {"num_drafted_steps": 2, "num_draft_tokens": 9, "num_accepted_tokens": 3}
    metrics.record({"acceptance_lengths": [1, 3, 2], **counts})
    metrics.record({"acceptance_lengths": [1, 1], **dict.fromkeys(counts, 0)})

    text = generate_latest(metrics.registry).decode()
    for line in (
        'vllm:spec_decode_num_drafts_total{model_name="m"} 2.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 9.0',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 3.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 2.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 1.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 0.0',
    ):
        assert line in text


def test_figures_of_a_request_agree_with_each_other():
    figures = speculative_decoding({"acceptance_lengths": [1, 3, 1, 2], "num_draft_tokens": 9})

    assert figures == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 3 / 9,
        "acceptance_histogram": [1, 1, 1],
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 9,
        "num_spec_steps": 3,
    }


def test_drafts_that_the_first_step_accepts_count():
    figures = speculative_decoding({"acceptance_lengths": [8], "num_draft_tokens": 16})

    assert figures == {
        "mean_acceptance_length": 8.0,
        "draft_acceptance_rate": 7 / 16,
        "acceptance_histogram": [0, 0, 0, 0, 0, 0, 0, 1],
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 16,
        "num_spec_steps": 1,
    }


def test_a_request_of_one_step_has_figures_too():
    figures = speculative_decoding({"acceptance_lengths": [1], "num_draft_tokens": 0})

    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"]) == 0

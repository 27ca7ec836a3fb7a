"""config.json in the form that the converters read."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.normalize import expected_rotary, normalized
from pipeline.errors import CheckpointError


def test_a_base_saved_by_transformers_5_is_moved_to_top_level():
    config = {"rope_parameters": {"rope_theta": 100000, "rope_type": "default"}, "dtype": "bfloat16"}
    result = normalized(config, "here")
    assert result["rope_theta"] == 100000
    assert "rope_scaling" not in result
    assert result["torch_dtype"] == "bfloat16"
    assert "rope_theta" not in config
    assert expected_rotary(result) == {"rotary_base": 100000.0}


def test_scaling_keeps_its_settings():
    rope = {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    result = normalized({"rope_parameters": rope}, "here")
    assert result["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    assert expected_rotary(result) == {"rotary_base": 500000.0, "rotary_scaling": {"factor": 8.0}}


def test_partial_rotation_is_moved_too():
    result = normalized({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "here")
    assert result["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(
    "config", [{}, {"rope_theta": 1e6, "rope_scaling": None}, {"rope_theta": 1e4, "torch_dtype": "x"}]
)
def test_the_older_form_stays_as_it_is(config):
    assert normalized(config, "here") == config


def test_contradictions_are_refused():
    with pytest.raises(CheckpointError, match=r"rope_theta is 10000\.0, but rope_parameters has 1000000"):
        normalized({"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1000000}}, "here")
    with pytest.raises(CheckpointError, match="should be an object"):
        normalized({"rope_parameters": 5}, "here")


def test_layers_of_two_kinds():
    full, sliding = {"rope_theta": 1e6, "rope_type": "linear", "factor": 8}, {"rope_theta": 1e4, "rope_type": "default"}
    gemma = normalized({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}, "here")
    assert (gemma["rope_theta"], gemma["rope_local_base_freq"]) == (1e6, 1e4)
    assert gemma["rope_scaling"] == {"rope_type": "linear", "factor": 8}
    same = normalized({"rope_parameters": {"full_attention": sliding, "sliding_attention": sliding}}, "here")
    assert same["rope_theta"] == 1e4
    with pytest.raises(CheckpointError, match="differ between layers"):
        normalized({"rope_parameters": {"first": full, "second": sliding}}, "here")

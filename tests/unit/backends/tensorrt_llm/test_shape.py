"""Sizes of a model before a download."""

from __future__ import annotations

import json

import pytest

from pipeline.backends.tensorrt_llm.shape import shape_from_config, shape_of
from pipeline.backends.tensorrt_llm.stages import _require_shape
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.folders import folders
from pipeline.config.loading import names_in
from pipeline.config.resolution import load_model_config
from pipeline.config.schema import LocalCheckpoint


@pytest.mark.parametrize("name", names_in(folders().models))
def test_shipped_sizes_add_up_to_the_parameters_that_the_model_has(name):
    model = load_model_config(name)
    shape = shape_of(model)
    assert shape is not None
    heads, kv = shape.num_attention_heads, shape.num_key_value_heads
    attention = shape.hidden_size * shape.head_size * 2 * (heads + kv)
    bias = shape.head_size * (heads + 2 * kv) if model.architecture == "Qwen2ForCausalLM" else 0
    block = attention + bias + 3 * shape.hidden_size * shape.intermediate_size + 2 * shape.hidden_size
    embedding = shape.vocab_size * shape.hidden_size
    tied = shape.num_layers * block + shape.hidden_size + embedding
    assert model.num_parameters in (tied, tied + embedding)


def test_a_local_checkpoint_is_read(tmp_path):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model_config("tiny-random-llama")
    local = model.model_copy(update={"checkpoint": LocalCheckpoint(path=str(tmp_path))})
    shape = shape_of(local)
    assert shape is not None
    assert (shape.head_size, shape.num_key_value_heads, shape.intermediate_size) == (16, 4, 256)
    for damaged in ("[]", "[" * 100_000, "", json.dumps(config | {"hidden_size": "64"})):
        (tmp_path / "config.json").write_text(damaged)
        assert shape_of(local) is None
    (tmp_path / "config.json").unlink()
    assert shape_of(local) is None


def test_words_of_other_families_are_understood():
    shape = shape_from_config(
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100, "alibi": False}, "GPT2LMHeadModel"
    )
    assert shape is not None
    assert (shape.num_layers, shape.position_embedding) == (3, "learned_absolute")
    falcon = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, "alibi": True}
    assert shape_from_config(falcon, "FalconForCausalLM").position_embedding == "alibi"
    assert shape_from_config({"hidden_size": 64}, "LlamaForCausalLM") is None


@pytest.mark.parametrize(
    ("architecture", "stated", "expected"),
    [
        ("LlamaForCausalLM", {}, "rope"),
        ("OPTForCausalLM", {}, "learned_absolute"),
        ("FalconForCausalLM", {"alibi": True}, "alibi"),
        ("FalconForCausalLM", {"alibi": False}, "rope"),
        ("FalconForCausalLM", {}, None),
        ("BloomForCausalLM", {}, None),  # the family tells
    ],
)
def test_positions_are_set_only_where_they_are_known(architecture, stated, expected):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, **stated}
    shape = shape_from_config(config, architecture)
    assert shape is not None
    assert shape.model_dump(exclude_unset=True).get("position_embedding") == expected


@pytest.mark.parametrize(
    ("stated", "heads"),
    [
        ({"multi_query": True, "num_kv_heads": 4}, 1),
        ({"multi_query": True, "num_kv_heads": 2, "new_decoder_architecture": True}, 2),
        ({"multi_query": False}, 4),
    ],
)
def test_one_key_value_head_is_read_in_falcons_words(stated, heads):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, **stated}
    shape = shape_from_config(config, "FalconForCausalLM")
    assert shape is not None
    assert shape.num_key_value_heads == heads


def test_a_window_counts_only_where_it_is_switched_on():
    base = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, "sliding_window": 32}
    assert shape_from_config(base, "MistralForCausalLM").sliding_window == 32
    assert shape_from_config({**base, "use_sliding_window": False}, "Qwen2ForCausalLM").sliding_window is None


def test_sizes_that_a_checkpoint_does_not_state_are_not_compared(tmp_path):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9}
    shape = shape_from_config(config, "FalconForCausalLM").model_copy(update={"position_embedding": "alibi"})
    _require_shape(config, Checkpoint(tmp_path, None, "FalconForCausalLM", "", ()), shape)

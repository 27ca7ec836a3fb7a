"""Sizes of a model before a download."""

from __future__ import annotations

import json

import pytest

from pipeline.backends.tensorrt_llm.shape import differences, shape_from_config, shape_of
from pipeline.config.loading import names_in
from pipeline.config.places import places
from pipeline.config.resolution import load_model
from pipeline.config.schema import LocalCheckpoint


@pytest.mark.parametrize("name", names_in(places().models))
def test_shipped_sizes_add_up_to_the_parameters_that_the_model_has(name):
    model = load_model(name)
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
    model = load_model("tiny-random-llama")
    local = model.model_copy(update={"checkpoint": LocalCheckpoint(path=str(tmp_path))})
    shape = shape_of(local)
    assert shape is not None
    assert (shape.head_size, shape.num_key_value_heads, shape.intermediate_size) == (16, 4, 256)
    (tmp_path / "config.json").unlink()
    assert shape_of(local) is None


def test_words_of_other_families_are_understood():
    shape = shape_from_config({"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100})
    assert shape is not None
    assert (shape.num_layers, shape.intermediate_size) == (3, 256)
    assert shape_from_config({"hidden_size": 64}) is None


def test_a_window_counts_only_where_it_is_switched_on():
    base = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, "sliding_window": 32}
    assert shape_from_config(base).sliding_window == 32
    assert shape_from_config({**base, "use_sliding_window": False}).sliding_window is None


def test_differences_name_what_differs():
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9}
    one = shape_from_config(config)
    other = shape_from_config({**config, "num_hidden_layers": 3})
    assert differences(one, other) == ["num_layers 3 instead of 2"]
    assert differences(one, one) == []

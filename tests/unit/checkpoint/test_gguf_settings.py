"""Settings and tensors of a GGUF file that transformers ignores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFWriter, RopeScalingType

from pipeline.checkpoint.model_config import check_positions, read_config
from pipeline.config.bare_checkpoint import GGUF_ARCHITECTURES
from pipeline.errors import CheckpointError
from tests.unit.checkpoint.sources import loaded, write_tensors


def write_gguf(
    folder: Path,
    *settings: Callable[[GGUFWriter], object],
    architecture: str = "llama",
    head_dim: int = 8,
    left_out: str = "",
    **tensors: npt.NDArray[np.float32],
) -> Path:
    """A model of one layer. left_out: key of a setting that the file lacks."""
    writer = GGUFWriter(folder / "a.gguf", architecture)
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(40)
    for setting in settings:
        setting(writer)
    writer.kv_data[0].pop(left_out, None)
    shapes = {"token_embd": (40, 32), "output": (40, 32), "output_norm": (32,), "blk.0.attn_q": (4 * head_dim, 32)}
    shapes |= {f"blk.0.{name}_norm": (32,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{name}": (2 * head_dim, 32) for name in "kv"} | {"blk.0.attn_output": (32, 4 * head_dim)}
    shapes |= {"blk.0.ffn_up": (48, 32), "blk.0.ffn_gate": (48, 32), "blk.0.ffn_down": (32, 48)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
    for name, values in tensors.items():
        writer.add_tensor(name.replace("__", "."), values)
    write_tensors(writer)
    return folder


def scaling(kind: RopeScalingType, factor: float) -> list[Callable[[GGUFWriter], object]]:
    return [lambda writer: writer.add_rope_scaling_type(kind), lambda writer: writer.add_rope_scaling_factor(factor)]


def floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("settings", "tensors", "expected"),
    [
        (scaling(RopeScalingType.LINEAR, 4.0), {}, "(rope.scaling.type 'linear', factor 4.0)"),
        (scaling(RopeScalingType.YARN, 4.0), {}, "(rope.scaling.type 'yarn', factor 4.0)"),
        ([lambda writer: writer.add_float32("llama.rope.scale_linear", 4.0)], {}, "factor 4"),
        ([lambda writer: writer.add_string("llama.rope.scaling.factor", "x")], {}, "factor x"),
        ([lambda writer: writer.add_array("tokenizer.ggml.eos_token_id", [1, 2])], {}, "Field 'eos_token_id'"),
        ([], {"rope_freqs__weight": floats(1, 1, 4, 8)}, "(tensor rope_freqs.weight, as Llama 3.1 has it)"),
        ([lambda writer: writer.add_vocab_size(2**32 - 1)], {}, "LlamaForCausalLM with its config has 27"),
        ([lambda writer: writer.add_sliding_window(7)], {}, "a sliding window of 7 tokens"),
        ([lambda writer: writer.add_key_length(16)], {}, "heads of 16 dimensions, of which rotary embeddings rotate 8"),
        ([], {"blk__0__attn_q__bias": floats(*range(32))}, "holds 13 tensors; the LlamaForCausalLM"),
    ],
)
def test_what_transformers_passes_over_in_a_gguf_file_is_refused(
    settings: list[Any], tensors: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        loaded(write_gguf(tmp_path, *settings, **tensors), "a.gguf")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_of_another_type_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path, lambda writer: writer.add_array("llama.attention.sliding_window", [7, 8]))
    with pytest.raises(CheckpointError, match=r"is not a config of a MistralForCausalLM: .*'sliding_window'"):
        read_config(tmp_path, "MistralForCausalLM", "a.gguf")


@pytest.mark.parametrize("name", ["llama.attention.head_count_kv", "llama.attention.layer_norm_rms_epsilon"])
def test_a_setting_without_which_another_model_is_computed_is_required(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"a\.gguf has no {name}"):
        loaded(write_gguf(tmp_path, left_out=name), "a.gguf")


def test_scaling_by_one_changes_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path, *scaling(RopeScalingType.LINEAR, 1.0), rope_freqs__weight=floats(1, 1, 1, 1))
    assert loaded(tmp_path, "a.gguf").config.rope_parameters["rope_type"] == "default"
    with pytest.raises(CheckpointError, match="found 65; should be at most 64, the context length of here"):
        check_positions(read_config(tmp_path, "LlamaForCausalLM", "a.gguf"), 65, "here")


@pytest.mark.parametrize("window", [None, 7])
def test_a_mistral_has_the_window_of_its_gguf_file(window: int | None, tmp_path: Path) -> None:
    settings = [] if window is None else [lambda writer: writer.add_sliding_window(window)]
    model = loaded(write_gguf(tmp_path, *settings), "a.gguf", "MistralForCausalLM")
    assert model.config.sliding_window == window


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_heads_are_as_wide_as_the_gguf_file_states(architecture: str, tmp_path: Path) -> None:
    """transformers takes 128 for Qwen3, and for Qwen2 the hidden size by the number of heads."""
    norms = {f"blk__0__attn_{name}_norm__weight": np.ones(16, dtype=np.float32) for name in "qk"}
    biases = {
        f"blk__0__attn_{name}__bias": np.ones(size, dtype=np.float32)
        for name, size in zip("qkv", (64, 32, 32), strict=True)
    }
    own = {"llama": {}, "qwen2": biases, "qwen3": norms}[architecture]
    stated = [lambda writer: writer.add_key_length(16), lambda writer: writer.add_value_length(16)]
    write_gguf(tmp_path, *stated, architecture=architecture, head_dim=16, **own)
    model = loaded(tmp_path, "a.gguf", GGUF_ARCHITECTURES[architecture][0])
    assert model.config.head_dim == 16
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (64, 32)


def test_all_end_tokens_of_a_gguf_file_end_a_text(tmp_path: Path) -> None:
    """Chats of Llama 3 end with a token of their own."""
    stated = [lambda writer: writer.add_eos_token_id(3), lambda writer: writer.add_eot_token_id(5)]
    assert loaded(write_gguf(tmp_path, *stated), "a.gguf").generation_config.eos_token_id == [3, 5]


def test_a_padding_token_outside_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    """As llama.cpp does; some published files have one."""
    assert (
        loaded(write_gguf(tmp_path, lambda writer: writer.add_pad_token_id(40)), "a.gguf").config.pad_token_id is None
    )

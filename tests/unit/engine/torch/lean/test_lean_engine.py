"""The lean pass equals transformers in float32, and its definition in bfloat16 and int8."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from pipeline.decoding.tree import chain
from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean.int16_rows import max_integers
from pipeline.engine.torch.lean.layout import load_model, save_lean
from pipeline.engine.torch.lean.node_logits import LeanLogits
from pipeline.engine.torch.lean.plan import read_plan
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.linear_layers import dequantize, quantize
from pipeline.errors import BuildError
from tests.unit.engine.torch.lean.models import LIMITS, VARIANTS, VOCAB_SIZE, lean_engine, tiny_model
from tests.unit.engine.torch.plain_passes import row_of, rows_beside, worst_difference


class ExactInt8(torch.nn.Module):
    """The definition of int8 in plain operations: each row by its own largest entry, products summed exactly."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.scale = quantize(linear.weight)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        largest = rows.abs().amax(-1, keepdim=True)
        integers = torch.round(rows * (127 / largest))
        result = (integers.double() @ self.weight.double().T) * self.scale * (largest / 127)
        return result.to(rows.dtype) + (0 if self.bias is None else self.bias)


def as_int8(model: PreTrainedModel) -> PreTrainedModel:
    """The model with `ExactInt8` layers; an embedding that is the output layer as well has the rounded weights."""
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.model.embed_tokens.weight.data = dequantize(quantize(model.lm_head.weight), torch.float32)
    return with_layers(model, ExactInt8)


class RoundedRows(torch.nn.Module):
    """The definition of bfloat16 in plain operations: weights and rows are rounded, products and sums are not."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight.bfloat16(), linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result = (rows.bfloat16().double() @ self.weight.double().T).to(rows.dtype)
        return result + (0 if self.bias is None else self.bias)


def as_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """The model with `RoundedRows` layers and a rounded embedding."""
    embedding = model.model.embed_tokens.weight
    embedding.data = embedding.detach().bfloat16().float()
    return with_layers(model, RoundedRows)


def quantized(entries: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in integers up to `largest`, and the value of 1."""
    scale = entries.abs().amax(-1, keepdim=True) / largest
    return torch.round(entries / scale).double(), scale


def short_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The definition of attention in 16 bit: queries, keys, values and weights are integers with scales."""
    group = query.shape[1] // key.shape[1]
    integers, values_integers = max_integers(query.shape[3])
    left, left_scale = quantized(query * scaling, integers)
    right, right_scale = quantized(key.repeat_interleave(group, 1), integers)
    values, value_scale = quantized(value.repeat_interleave(group, 1), values_integers)
    scores = (left @ right.transpose(2, 3)) * left_scale * right_scale.transpose(2, 3)
    weights = scores.masked_fill(~attention_mask, -torch.inf).softmax(-1)
    scaled, one = quantized(weights * value_scale.transpose(2, 3), 32767)
    unit = torch.exp2((torch.log2(scaled.sum(-1, keepdim=True)).floor() - 18).clamp(min=0))
    result = ((scaled / unit + 0.5).floor() @ values) * (one * unit)
    return result.transpose(1, 2).to(query.dtype), None


AttentionInterface.register("short attention", short_attention)
AttentionMaskInterface.register(
    "short attention", lambda **options: sdpa_mask(**options | {"allow_is_causal_skip": False})
)


def with_layers(model: PreTrainedModel, kind: type[torch.nn.Module]) -> PreTrainedModel:
    model.set_attn_implementation("short attention")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, name, kind(child))
    return model


REFERENCES = {"float32": lambda model: model, "bfloat16": as_bfloat16, "int8": as_int8}
# A value near the middle between two numbers may be rounded either way by another order of sums.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.1}


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_trees_and_commits_equal_plain_passes(variant: str, kind: str, tmp_path: Path) -> None:
    engine = lean_engine(tiny_model(variant), kind, tmp_path)  # type: ignore[arg-type]
    reference = REFERENCES[kind](tiny_model(variant))
    assert worst_difference(engine, reference, num_tokens=43, num_first=23) <= TOLERANCES[kind]


@pytest.mark.parametrize("variant", ["llama", "tied", "qwen2", "qwen3"])
def test_bfloat16_is_nearer_to_float32_than_transformers_in_bfloat16(variant: str, tmp_path: Path) -> None:
    """Only weights and the inputs of matrices are rounded; transformers also rounds the residual stream."""
    engine, model = lean_engine(tiny_model(variant), "bfloat16", tmp_path), tiny_model(variant)
    tokens = np.random.default_rng(0).integers(1, VOCAB_SIZE, 30).tolist()
    (logits,) = engine.verify([VerifyItem(engine.open(np.asarray(tokens)))])
    assert logits is not None
    exact = row_of(model, tokens)
    with torch.inference_mode():
        rounded = load_model(tmp_path, torch.bfloat16)(torch.tensor([tokens])).logits[0, -1].float().numpy()
    own_error, other_error = (np.square(row - exact).mean() for row in (logits.row(0), rounded))
    assert own_error < other_error
    assert own_error < 0.01 * np.square(exact).mean()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama", "tied", "qwen2", "qwen3", "biases"])
def test_the_weights_can_be_read_back(variant: str, kind: str, tmp_path: Path) -> None:
    lean_engine(tiny_model(variant), kind, tmp_path)  # type: ignore[arg-type]
    expected, found = tiny_model(variant).state_dict(), load_model(tmp_path).state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        is_rounded = kind == "bfloat16" and tensor.ndim == 2
        assert torch.equal(tensor.bfloat16().float() if is_rounded else tensor, found[name]), name


@pytest.mark.parametrize("kind", TOLERANCES)
def test_all_weights_begin_at_a_cache_line_whatever_their_widths(kind: str, tmp_path: Path) -> None:
    lean_engine(tiny_model("llama", vocab_size=VOCAB_SIZE + 1, head_dim=24), kind, tmp_path)  # type: ignore[arg-type]
    tensors = map_weights(tmp_path / "model.safetensors")
    in_16_bit = {f"{name}.weight" for name in ("qkv", "output", "gate_up", "down", "head")} | {"embedding"}
    found = {name for name, tensor in tensors.items() if tensor.dtype == np.uint16}
    assert found == (in_16_bit if kind == "bfloat16" else set())
    assert {name: tensor.ctypes.data % 64 for name, tensor in tensors.items()} == dict.fromkeys(tensors, 0)


@pytest.mark.parametrize("kind", TOLERANCES)
def test_writing_holds_one_layer_beside_the_model(kind: str, tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=12)
    save_lean(model, kind, tmp_path / "first")  # type: ignore[arg-type]  # imports and caches
    tracemalloc.start()
    save_lean(model, kind, tmp_path / "second")  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = (tmp_path / "second" / "model.safetensors").stat().st_size
    assert size > 5_000_000
    assert peak < 0.5 * size


def test_top_k_are_the_most_probable_tokens(tmp_path: Path) -> None:
    engine, reference = lean_engine(tiny_model("llama"), "float32", tmp_path), tiny_model("llama")
    sequence = engine.open(np.asarray([1, 2, 3]))
    (logits,) = engine.verify([VerifyItem(sequence, chain([4]))])
    assert logits is not None
    ids, probabilities = logits.top_k(5)
    expected = torch.softmax(torch.from_numpy(row_of(reference, [1, 2, 3, 4])), 0)
    assert ids[1].tolist() == expected.argsort(descending=True)[:5].tolist()
    np.testing.assert_allclose(probabilities[1], expected[ids[1]], rtol=1e-4)
    every, _ = logits.top_k(VOCAB_SIZE)
    assert sorted(every[0].tolist()) == list(range(VOCAB_SIZE)), "nothing behind the vocabulary"


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_pass_finds_the_same_tokens_as_a_search_after_it(num_threads: int, tmp_path: Path) -> None:
    engine = lean_engine(tiny_model("llama"), "int8", tmp_path, num_threads)
    first, second = engine.open(np.asarray([1, 2, 3])), engine.open(np.asarray([4]))
    for k in (1, 7, VOCAB_SIZE):
        items = [VerifyItem(first, chain([4, 5]), num_top=k), VerifyItem(second)]
        for found in engine.verify(items):
            assert found is not None
            part = found.nodes  # type: ignore[attr-defined]
            searched = LeanLogits.top_k(found.logits, part, k - 1 or 2)  # type: ignore[attr-defined]
            for in_pass, after in zip(found.top_k(k), searched, strict=True):
                width = min(in_pass.shape[1], after.shape[1])
                np.testing.assert_array_equal(in_pass[:, :width], after[:, :width])
        for sequence in (first, second):
            engine.commit(sequence, [], [6])


def test_cached_prefixes_are_found_and_copied(tmp_path: Path) -> None:
    engine, reference = lean_engine(tiny_model("llama"), "float32", tmp_path), tiny_model("llama")
    first = engine.open(np.arange(1, 31))
    engine.verify([VerifyItem(first)])
    engine.commit(first, [], [5])
    engine.release(first)
    other = engine.open(np.asarray([*range(1, 10), 7, 7]))
    assert other.num_reused_tokens == 9
    assert other.index != first.index
    (logits,) = engine.verify([VerifyItem(other)])
    assert logits is not None
    np.testing.assert_allclose(logits.row(0), row_of(reference, [*range(1, 10), 7, 7]), atol=1e-3)


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = lean_engine(tiny_model("llama"), "float32", tmp_path)
    with pytest.raises(AssertionError, match="fits into a slot"):
        engine.open(np.ones(LIMITS.max_seq_len + 1, np.int32))
    monkeypatch.setattr("pipeline.engine.torch.lean.kv_cache.available_bytes", lambda: 1000)
    with pytest.raises(BuildError, match=r"A KV cache of 12 sequences .* available on cpu"):
        lean_engine(tiny_model("llama"), "float32", tmp_path)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ("qwen3", {"head_dim": 24}),  # the norm of a head would overwrite the next head
    ],
)
def test_a_model_that_the_pass_does_not_compute_is_left_to_transformers(
    variant: str, changes: dict, tmp_path: Path
) -> None:
    assert not save_lean(tiny_model(variant, **changes), "int8", tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lean.json").write_text("{}")
    with pytest.raises(BuildError, match=r"lean\.json cannot be read; build the engine again with `lookahead engine"):
        read_plan(tmp_path)


def test_one_thread_compiles_the_pass_before_several_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numba fails ("no compiled object yet") where several threads compile a loop at its first call."""
    warmed_up: list[int] = []
    monkeypatch.setattr("pipeline.engine.torch.lean.engine.warm_up_pass", lambda: warmed_up.append(1))
    for complete, num_threads, expected in ((False, 1, 0), (True, 2, 0), (False, 2, 1)):
        monkeypatch.setattr("pipeline.engine.torch.lean.engine.is_complete", lambda complete=complete: complete)
        lean_engine(tiny_model("qwen3"), "float32", tmp_path / f"{complete}{num_threads}", num_threads)
        assert len(warmed_up) == expected


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_draft_whose_activations_are_not_finite_changes_no_other_row(kind: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.get_input_embeddings().weight.data[8] = torch.nan
    engine = lean_engine(model, kind, tmp_path)  # type: ignore[arg-type]

    assert np.array_equal(rows_beside(engine, 8), rows_beside(engine, 2))

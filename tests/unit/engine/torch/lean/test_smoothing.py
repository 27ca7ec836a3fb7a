"""Factors between activations and int8 weights: they come from the largest inputs, change no exact result, and reduce
the rounding errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipeline.decoding.tree import chain
from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.engine.torch.lean.layout import load_model, rotary, save_lean
from pipeline.engine.torch.lean.plan import WEIGHTS, plan_of, read_plan
from pipeline.engine.torch.lean.smoothing import smoothing_factors, smoothing_texts
from pipeline.engine.torch.lean.weights import map_weights
from tests.unit.engine.torch.lean.models import LIMITS, VARIANTS, VOCAB_SIZE, tiny_model
from tests.unit.engine.torch.plain_passes import row_of

# Shorter than the sliding windows of the variants.
TEXTS = np.random.default_rng(3).integers(1, VOCAB_SIZE, (40, 6)).tolist()
TOKENS = np.random.default_rng(4).integers(1, VOCAB_SIZE, 20).tolist()


def uneven_model(variant: str) -> PreTrainedModel:
    """A model in which some inputs of matrices are ten times as large as others."""
    model = tiny_model(variant, initializer_range=0.05)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layernorm.weight") or name == "model.norm.weight":
                parameter[3] *= 10
            if name.endswith("up_proj.weight"):
                parameter[5] *= 10
    return model


def saved(model: PreTrainedModel, folder: Path, texts: list[list[int]]) -> LeanEngine:
    assert save_lean(model, "int8", folder, texts)
    plan = read_plan(folder)
    assert plan is not None
    return LeanEngine(plan, map_weights(folder / WEIGHTS), LIMITS, 2)


def logits_of(engine: LeanEngine) -> np.ndarray:
    """The logits after `TOKENS`, of which the last two are drafts."""
    *prompt, first, second = TOKENS
    (logits,) = engine.verify([VerifyItem(engine.open(np.asarray(prompt)), chain([first, second]))])
    assert logits is not None
    return logits.row(2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_factors_come_from_the_largest_inputs_that_transformers_computes(variant: str) -> None:
    model = uneven_model(variant)
    inverse_frequencies, rotary_scale = rotary(model.config)
    plan = plan_of(model.config, "int8", rotary_scale)
    assert plan is not None
    found = smoothing_factors(model.state_dict(), plan, inverse_frequencies, TEXTS)

    model.requires_grad_(False)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    largest: dict[str, torch.Tensor] = {}
    for name, module in linears.items():

        def keep(module: torch.nn.Module, inputs: tuple[torch.Tensor], name: str = name) -> None:
            largest[name] = inputs[0].abs().amax((0, 1))

        module.register_forward_pre_hook(keep)
    model(torch.tensor(TEXTS))
    groups = {
        "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }
    for field, names in groups.items():
        for layer in range(plan.num_layers):
            full = [f"model.layers.{layer}.{name}" for name in names]
            weight = torch.cat([linears[name].weight for name in full]).abs().amax(0)
            expected = (largest[full[0]] / weight).sqrt()
            torch.testing.assert_close(getattr(found, field)[layer], expected, rtol=0.005, atol=0)
    expected = (largest["lm_head"] / linears["lm_head"].weight.abs().amax(0)).sqrt()
    torch.testing.assert_close(found.head, torch.ones(40) if plan.tied else expected, rtol=0.005, atol=0)


@pytest.mark.parametrize("variant", ["llama", "biases", "qwen2", "mistral"])
def test_factors_reduce_the_error_of_int8(variant: str, tmp_path: Path) -> None:
    model = uneven_model(variant)
    exact = row_of(model, TOKENS)
    plain, smoothed = (
        np.square(logits_of(saved(model, tmp_path / name, texts)) - exact).mean()
        for name, texts in (("plain", []), ("smoothed", TEXTS))
    )
    assert smoothed < 0.5 * plain


@pytest.mark.parametrize("variant", VARIANTS)
def test_factors_change_the_function_by_rounding_only(variant: str, tmp_path: Path) -> None:
    """In the engine, and in the weights that are read back."""
    model = uneven_model(variant)
    exact, found = row_of(model, TOKENS), logits_of(saved(model, tmp_path, TEXTS))
    variance = np.square(exact - exact.mean()).mean()
    assert np.square(found - exact).mean() < 0.01 * variance
    assert np.square(row_of(load_model(tmp_path), TOKENS) - exact).mean() < 0.01 * variance


def test_an_input_that_is_always_zero_has_the_factor_1() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight[7] = 0
        model.lm_head.weight[:, 9] = 0
    inverse_frequencies, rotary_scale = rotary(model.config)
    plan = plan_of(model.config, "int8", rotary_scale)
    assert plan is not None
    head = smoothing_factors(model.state_dict(), plan, inverse_frequencies, TEXTS).head
    assert head[[7, 9]].tolist() == [1, 1]
    assert (head[[6, 8]] != 1).all()


class Characters:
    """A tokenizer with a token for each byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_texts_are_cut_to_the_context_of_the_model() -> None:
    whole, cut = (smoothing_texts(Characters(), 256, longest) for longest in (4096, 16))
    assert [text[:16] for text in whole] == cut
    assert max(map(len, whole)) > 100


def test_texts_have_no_tokens_that_the_model_lacks() -> None:
    """A build with the tokenizer of another model ends with a sentence about it, not here."""
    whole, known = (smoothing_texts(Characters(), vocab_size, 4096) for vocab_size in (256, 48))
    assert known == [[token for token in text if token < 48] for text in whole]
    assert 0 < len(smoothing_texts(Characters(), 11, 4096)) < len(whole), "line ends are in some of them only"
    assert not smoothing_texts(Characters(), 1, 4096)

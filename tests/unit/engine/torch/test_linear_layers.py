"""Layers in int8: rounding, kernels, saved models, and outputs that drafts do not change."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.checkpoint.architectures import SUPPORTED_ARCHITECTURES, UNQUANTIZED
from pipeline.decoding.request import SamplingParams
from pipeline.engine.contract import EngineLimits
from pipeline.engine.submission import Submission
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.fusion import concatenated
from pipeline.engine.torch.linear_layers import (
    QuantizedLinear,
    can_quantize,
    dequantize,
    pack_linears,
    quantize,
)
from pipeline.engine.torch.quantized_files import load_quantized, save_quantized
from pipeline.errors import BuildError
from tests.fakes import HostileSource, make_request, make_scheduler
from tests.unit.engine.torch.test_architectures import tiny_model

needs_fbgemm = pytest.mark.skipif(not can_quantize(), reason="torch has no FBGEMM kernels for this CPU")


def layer(outputs: int, inputs: int, bias: bool = True) -> QuantizedLinear:
    torch.manual_seed(outputs + inputs)
    return QuantizedLinear(quantize(torch.randn(outputs, inputs)), torch.randn(outputs) if bias else None)


def packed(linear: QuantizedLinear) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(linear))
    pack_linears(model)
    return model


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.floats(-20, 20))
def test_every_weight_is_within_half_a_step(outputs: int, inputs: int, seed: int, exponent: float) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    weight[0] = 0
    quantized = quantize(weight)
    assert quantized.integers.dtype == torch.int8
    assert quantized.integers[1:].abs().amax(dim=1).eq(127).all()
    error = (dequantize(quantized, torch.float64) - weight).abs()
    assert (error <= 0.5001 * quantized.scale[:, None]).all()
    again = quantize(dequantize(quantized, torch.float32))
    assert torch.equal(again.integers, quantized.integers)


def test_a_pass_that_needs_no_logits_has_no_rows_of_them() -> None:
    """A part of a long prompt; it failed in int8."""
    linear = layer(64, 32)
    for module in (linear, packed(linear)):
        assert module(torch.zeros(1, 0, 32)).shape == (1, 0, 64)


@needs_fbgemm
@pytest.mark.parametrize(("outputs", "inputs", "bias"), [(64, 48, True), (17, 5, False), (1, 1, True), (40, 576, True)])
def test_the_float32_kernel_computes_the_plain_operations(outputs: int, inputs: int, bias: bool) -> None:
    linear = layer(outputs, inputs, bias=bias)
    kernel = packed(linear)
    assert type(kernel[0]) is not QuantizedLinear  # type: ignore[index]
    rows = torch.randn(1, 7, inputs)
    torch.testing.assert_close(kernel(rows), linear(rows), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(kernel(rows), linear(rows), rtol=1e-5, atol=1e-4)  # the kernel left its input alone


@needs_fbgemm
def test_a_row_does_not_depend_on_how_many_are_computed_with_it() -> None:
    kernel = packed(layer(96, 64))
    rows = torch.randn(80, 64)
    together = kernel(rows)
    for count in (1, 2, 3, 7, 8, 16, 17, 33, 64, 79):
        assert torch.equal(kernel(rows[-count:].contiguous()), together[-count:])


@pytest.mark.parametrize("bias", [True, False])
def test_layers_side_by_side_compute_what_each_does(bias: bool) -> None:
    linears = [layer(8, 6, bias=bias), layer(3, 6, bias=bias)]
    rows = torch.randn(4, 6)
    expected = torch.cat([linear(rows) for linear in linears], dim=1)
    together = concatenated(linears)
    assert together is not None
    torch.testing.assert_close(together(rows), expected)


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_a_saved_model_loads_as_the_model_with_its_weights_rounded(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    if architecture in UNQUANTIZED:
        with pytest.raises(BuildError, match=r"outside a linear layer.*quantization = 'none'"):
            save_quantized(model, tmp_path)
        return
    save_quantized(model, tmp_path)
    loaded = load_quantized(tmp_path, torch.float64)
    loaded.set_attn_implementation("eager")  # as the model that it is compared with
    with torch.no_grad():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.weight.copy_(dequantize(quantize(module.weight), torch.float64))
        tokens = torch.tensor([[1, 5, 9, 3, 22, 8, 30, 7, 7, 12]])
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-5, atol=1e-5)
    stored = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert stored < 0.5 * sum(tensor.nbytes for tensor in model.parameters())


@pytest.fixture(scope="module", params=[torch.float32, torch.float64])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    folder = tmp_path_factory.mktemp("int8")
    save_quantized(tiny_model("LlamaForCausalLM"), folder)
    limits = EngineLimits(max_batch_size=4, max_seq_len=96, max_num_tokens=256, max_draft_tokens=32, vocab_size=40)
    return TorchEngine(load_quantized(folder, request.param), limits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token_of_the_quantized_model(engine: TorchEngine, temperature: float) -> None:
    random = np.random.default_rng(1)
    prompts = [random.integers(1, 40, length).tolist() for length in (1, 5, 9, 17, 30)]

    def run(strategy: str) -> list[list[int]]:
        scheduler = make_scheduler(HostileSource(3), engine=engine, budget=(12, 6), prefill_chunk=8)
        sampling = SamplingParams(temperature=temperature, seed=5)
        submissions = [Submission(make_request(prompt, 20, sampling=sampling), strategy) for prompt in prompts]
        return [result.output_ids for result in scheduler.run(submissions)]

    assert run("trie") == run("none")

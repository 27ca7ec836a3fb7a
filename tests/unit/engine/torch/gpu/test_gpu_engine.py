"""The GPU's engine equals transformers, path by path, in recorded sizes and beyond."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.load_transformers import engine_over
from tests.unit.engine.torch.devices import DEVICE
from tests.unit.engine.torch.plain_passes import rows_beside, worst_difference

pytest.importorskip("triton")

from pipeline.engine.torch.gpu import engine as gpu_engine
from pipeline.engine.torch.gpu.engine import GpuEngine, gpu_plan

# Rows of no sequence hold what their memory held before.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LIMITS = EngineLimits(max_batch_size=1, max_seq_len=100, max_num_tokens=96, max_draft_tokens=16, vocab_size=40)
COMMON: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 200,
    "initializer_range": 0.4,
}
CONFIGS = {
    "grouped heads": LlamaConfig(**COMMON, rope_theta=500.0),
    "norms per head, biases, tied": Qwen3Config(**COMMON, head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "window": MistralConfig(**COMMON, sliding_window=7),
}


def model_of(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data.uniform_(-1, 1)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_passes_equal_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass is larger than all that are recorded, the next is a prompt's, the others are trees'."""
    monkeypatch.setattr(gpu_engine, "_TREE_ROWS", (4, 10))
    monkeypatch.setattr(gpu_engine, "_PROMPT_ROWS", (15,))
    reference = model_of(CONFIGS[name])
    model = copy.deepcopy(reference).to(DEVICE)
    plan = gpu_plan(model)
    assert plan is not None

    engine = GpuEngine(model, plan, LIMITS)

    assert worst_difference(engine, reference, num_tokens=22, num_first=16) <= 2e-5


def test_a_model_of_another_family_and_one_on_a_cpu_have_transformers_pass() -> None:
    assert gpu_plan(model_of(LlamaConfig(**COMMON, hidden_act="gelu"))) is None
    assert isinstance(engine_over(model_of(CONFIGS["window"]), LIMITS), TorchEngine)


def test_a_draft_whose_activations_are_not_finite_changes_no_other_row() -> None:
    model = model_of(CONFIGS["grouped heads"]).to(DEVICE)
    model.get_input_embeddings().weight.data[8] = torch.nan
    plan = gpu_plan(model)
    assert plan is not None
    engine = GpuEngine(model, plan, LIMITS)

    assert np.array_equal(rows_beside(engine, 8), rows_beside(engine, 2))

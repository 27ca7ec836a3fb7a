"""Every supported architecture as a tiny random model: tree passes equal transformers' own, path by path."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from pipeline.checkpoint.architectures import SUPPORTED_ARCHITECTURES
from pipeline.decoding.tree import path_to, tree_from_lists
from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.torch.engine import TorchEngine

VOCAB_SIZE = 40
LIMITS = EngineLimits(max_batch_size=2, max_seq_len=96, max_num_tokens=96, max_draft_tokens=16, vocab_size=VOCAB_SIZE)

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2}

# What only this family has, switched on so that it is tested. Windows are shorter than the test's sequences.
OWN: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": 7},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "Qwen3ForCausalLM": {"head_dim": 16},
    "Gemma2ForCausalLM": {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16},
    "Gemma3ForCausalLM": {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16},
    "OPTForCausalLM": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4},
}
ALL_HEADS = ("GPTNeoXForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM")


def tiny_model(architecture: str) -> PreTrainedModel:
    torch.manual_seed(3)
    model_class = getattr(transformers, architecture)
    grouped = {} if architecture in ALL_HEADS else GROUPED
    model: PreTrainedModel = model_class(model_class.config_class(**{**COMMON, **grouped, **OWN.get(architecture, {})}))
    # Experts have no float64 kernel.
    return model.to(torch.float32 if "num_local_experts" in model.config.to_dict() else torch.float64).eval()


def reference_row(model: PreTrainedModel, tokens: list[int]) -> npt.NDArray[np.float64]:
    with torch.inference_mode():
        logits: npt.NDArray[np.float64] = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
    return logits


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_chunks_trees_and_commits_equal_plain_passes(architecture: str) -> None:
    reference = tiny_model(architecture)
    engine = TorchEngine(tiny_model(architecture), LIMITS)
    random = np.random.default_rng(0)
    tokens = random.integers(1, VOCAB_SIZE, 20).tolist()
    sequence = engine.open(np.asarray(tokens))
    engine.verify([VerifyItem(sequence, num_pending=9)])
    for _ in range(3):
        tree = tree_from_lists(random.integers(1, VOCAB_SIZE, 8).tolist(), [-1, -1, 0, 1, 1, 2, 4, 6])
        (logits,) = engine.verify([VerifyItem(sequence, tree)])
        assert logits is not None
        for node in range(-1, len(tree)):
            path = tree.token_ids[path_to(tree, node)].tolist() if node >= 0 else []
            expected = reference_row(reference, tokens + path)
            np.testing.assert_allclose(logits.row(node + 1), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
        path = path_to(tree, 6)
        kept = [*tree.token_ids[path].tolist(), int(random.integers(1, VOCAB_SIZE))]
        engine.commit(sequence, path, kept)
        tokens += kept

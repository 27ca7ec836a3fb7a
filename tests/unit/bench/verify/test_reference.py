"""Outputs of an engine with the right and with wrong weights, against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.bench.verify.reference import LEAST_AGREEMENT, _device_for, agreement

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PROMPTS = [np.arange(start, start + 6, dtype=np.int32) for start in (1, 20, 40)]


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES)).eval()


def outputs(target: Any) -> list[tuple[np.ndarray, list[int]]]:
    found = []
    for prompt in PROMPTS:
        ids = target.generate(torch.as_tensor(prompt)[None].long(), do_sample=False, max_new_tokens=12, pad_token_id=0)
        found.append((prompt, ids[0, len(prompt) :].tolist()))
    return found


def test_the_models_own_outputs_agree_and_those_of_other_weights_do_not() -> None:
    right = model(0)
    assert agreement(right, outputs(right), tolerance=1e-4) == 1.0
    assert agreement(right, outputs(model(1))) < LEAST_AGREEMENT / 2


def test_a_token_within_the_tolerance_is_right() -> None:
    right = model(0)
    (prompt, tokens), *_ = outputs(right)
    wrong = [*tokens[:-1], (tokens[-1] + 1) % 64]
    assert agreement(right, [(prompt, wrong)]) == 1 - 1 / len(tokens)
    assert agreement(right, [(prompt, wrong)], tolerance=1e9) == 1.0


def test_a_gpu_that_a_server_has_filled_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _device_for(model(0)) == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for free, device in ((1 << 10, "cpu"), (1 << 30, "cuda")):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda free=free: (free, 1 << 34))
        assert _device_for(model(0)) == device

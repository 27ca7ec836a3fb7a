"""Compiles the lean pass, or loads its machine code from `pipeline.decoding.compile_cache`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.lean.attention import FIRST_TASK, IS_CHAIN, LENGTH, NUM_SEGMENT_FIELDS, TASK_ROWS
from pipeline.engine.torch.lean.crew import Crew
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.node_logits import LeanLogits
from pipeline.engine.torch.lean.plan import LeanPlan
from pipeline.engine.torch.lean.runner import Runner
from pipeline.engine.torch.lean.vectors import LANES

# The smallest possible model: one layer with one head, all of a vector's width.
_PLAN = LeanPlan(
    kind="float32",
    num_layers=1,
    hidden_size=LANES,
    num_heads=1,
    num_kv_heads=1,
    head_dim=LANES,
    intermediate_size=LANES,
    vocab_size=LANES,
    epsilon=1e-5,
    rotary_scale=1.0,
    tied=False,
    head_norms=False,
    windows=(0,),
)
_LIMITS = EngineLimits(max_batch_size=1, max_seq_len=LANES, max_num_tokens=1, max_draft_tokens=0, vocab_size=LANES)


def warm_up_pass() -> None:
    """Compute one token with weights of zero. One compiled pass serves all models and all kinds of weights."""
    tensors: dict[str, npt.NDArray[Any]] = {
        "inverse_frequencies": np.ones(LANES // 2, np.float32),
        "embedding": np.ones((LANES, LANES), np.float32),
        "final_norm": np.ones(LANES, np.float32),
        "head.weight": np.zeros((1, LANES, LANES, 1), np.float32),
        "head.bias": np.zeros(LANES, np.float32),
        "input_norm": np.ones((1, LANES), np.float32),
        "post_norm": np.ones((1, LANES), np.float32),
    }
    for name, num_blocks in (("qkv", 3), ("output", 1), ("gate_up", 2), ("down", 1)):
        tensors[f"{name}.weight"] = np.zeros((1, num_blocks, LANES, LANES, 1), np.float32)
        tensors[f"{name}.bias"] = np.zeros((1, num_blocks * LANES), np.float32)
    cache = LeanCache(_PLAN, 1, LANES)
    runner = Runner(_PLAN, tensors, cache, _LIMITS, Crew(1))
    segments = np.zeros((2, NUM_SEGMENT_FIELDS), np.int64)
    segments[0, [LENGTH, IS_CHAIN, TASK_ROWS]] = 1
    segments[1, FIRST_TASK] = 1  # number of tasks
    logits, maxima = runner.run(
        np.zeros(1, np.int32), np.zeros((1, 3), np.int64), segments, np.zeros(0, np.float32), np.zeros(1, np.int64)
    )
    runner.multiply(1)
    LeanLogits(logits, maxima, LANES).top_k(slice(1), 1)
    cache.move_path(0, 0, [1])
    LeanCache(_PLAN.model_copy(update={"kind": "int8"}), 1, LANES).move_path(0, 0, [1])

"""Compiles the lean pass, or loads its machine code from `pipeline.decoding.compile_cache`."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import DraftTree
from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.plan import LeanPlan
from pipeline.engine.torch.lean.tables import Array
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
_LIMITS = EngineLimits(max_batch_size=1, max_seq_len=LANES, max_num_tokens=3, max_draft_tokens=2, vocab_size=LANES)


def warm_up_pass() -> None:
    """Compute one step with weights of zero. One compiled pass serves all models and all kinds of weights."""
    from pipeline.engine.torch.lean.engine import LeanEngine  # imports this module

    tensors: dict[str, Array] = {
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
    engine = LeanEngine(_PLAN, tensors, _LIMITS, 1)
    sequence = engine.open(np.zeros(1, np.int32))
    (logits,) = engine.verify([VerifyItem(sequence, DraftTree(np.zeros(2, np.int32), np.full(2, -1, np.int32)))])
    assert logits is not None, "nothing is left pending"
    logits.top_k(1)
    engine.commit(sequence, [1], [0, 0])
    LeanCache(_PLAN.model_copy(update={"kind": "int8"}), 1, LANES).move_path(0, 0, [1])

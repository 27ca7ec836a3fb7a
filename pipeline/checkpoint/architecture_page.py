"""Text of docs/architectures.md from the list that the engine and its tests use."""

from __future__ import annotations

from pipeline.checkpoint.architectures import ARCHITECTURES, MOVING_ROPE, REFUSED

_HEAD = """# Architectures of the torch engine

Written by `lookahead dev generate` from `pipeline/checkpoint/architectures.py`; `make check` and a test fail when it is
stale.

For each row `tests/unit/engine/torch/test_architectures.py` makes a tiny random model and compares prompts in chunks,
draft trees and the cache after a commit with transformers' own plain passes, path by path; windows are shorter than the
test's sequences. Attention is that of the modelling code: full, or as the row says. int8: `engine.quantization: int8`.

pass: what computes the model. `lean` is the engine's own pass for CPUs in float32 and int8 (see
[cpu-engine.md](cpu-engine.md)); these families take the transformers path on CUDA, in 16 bit, with
`model.parallelism.tensor` above 1, and for a checkpoint with another activation than SiLU or with partial rotary
embeddings. `transformers` is transformers' modelling code; its int8 rounds the weights only.

| class in config.json | family | attention | pass | int8 |
| --- | --- | --- | --- | --- |
"""

_REFUSED = """
## Refused, and why

A class that stands in neither table is refused as not tested.

| class in config.json | reason |
| --- | --- |
"""


def architecture_page() -> str:
    rows = [
        f"| {known.name} | {known.family} | {known.attention} | {'lean' if known.lean else 'transformers'} | "
        f"{'yes' if known.unquantized is None else 'no'} |"
        for known in ARCHITECTURES
    ]
    refused = [f"| {name} | {reason} |" for name, reason in REFUSED.items()]
    kinds = " or ".join(f"`{kind}`" for kind in MOVING_ROPE)
    refused.append(
        f"| any with rotary embeddings of type {kinds} | they change for all positions with the longest one, so a "
        "draft token past the limit would change tokens before it |"
    )
    reasons: dict[str, list[str]] = {}
    for known in ARCHITECTURES:
        if known.unquantized is not None:
            reasons.setdefault(known.unquantized, []).append(known.name)
    plain = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return "\n".join([_HEAD.strip(), *rows, "", f"No int8: {plain}.", _REFUSED.rstrip(), *refused, ""])

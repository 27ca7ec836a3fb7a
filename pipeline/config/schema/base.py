"""Base class and common types of all settings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Device = Literal["cpu", "cuda"]
Strategy = Literal["none", "lookahead", "trie", "hybrid", "auto"]
Dtype = Literal["float32", "float16", "bfloat16"]
Retrieval = Literal["hierarchical", "parallel", "single"]


class Frozen(BaseModel):
    """A value that is immutable after validation and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

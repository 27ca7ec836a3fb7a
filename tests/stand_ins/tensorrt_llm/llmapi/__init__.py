"""Speculation configs: fields of the contract, others refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Whether configs may be given as text with a `decoding_type`, as newer releases take them.
TAKES_TEXT = False


@dataclass
class UserProvidedDecodingConfig:
    max_draft_len: int
    drafter: Any
    resource_manager: Any = None


@dataclass
class NGramDecodingConfig:
    max_draft_len: int
    max_matching_ngram_size: int = 0
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


@dataclass
class SADecodingConfig:
    max_draft_len: int
    max_matching_ngram_size: int = -1
    enable_global_pool: bool = False
    global_pool_size: int | None = None


def config_of(text: dict[str, Any]) -> NGramDecodingConfig:
    arguments = dict(text)
    assert arguments.pop("decoding_type") == "NGram"
    return NGramDecodingConfig(**arguments)

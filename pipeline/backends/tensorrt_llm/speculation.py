"""Speculative modes of TensorRT-LLM's engines.

An engine holds one number, `max_draft_len`. Lookahead's W, N and G stand beside it three times: where the engine was
built (our manifest), at the served instance (config.pbtxt) and in a request. `max_draft_len` must be the formula's
value for the first two, and a request may only ask for less.
"""

from __future__ import annotations

from pipeline.config.schema import ResolvedConfig
from pipeline.engine.chains import Mode, Triple

# Modes of trtllm-build, and the names under which an engine's config.json stores them as a number.
BUILD_MODES: dict[Mode, str | None] = {
    "lookahead": "lookahead_decoding",
    "trie": "draft_tokens_external",
    "none": None,
}


def effective_branches(triple: Triple) -> int:
    """Candidates that are really verified: the pool's answer is cut to W."""
    return min(triple.verification_set_size, triple.window_size)


def modes_of(resolved: ResolvedConfig) -> tuple[Mode, ...]:
    """Modes of the engines that a config asks for; the first is served as `tensorrt_llm`."""
    match resolved.profile.tensorrt_llm.speculation:
        case "both":
            return ("trie", "lookahead")
        case mode:
            return (mode,)


def draft_len_of(resolved: ResolvedConfig, mode: Mode) -> int:
    """`max_draft_len` of an engine."""
    match mode:
        case "lookahead":
            return resolved.lookahead.max_draft_len
        case "trie":
            return resolved.profile.tensorrt_llm.max_external_draft_len
        case "none":
            return 0

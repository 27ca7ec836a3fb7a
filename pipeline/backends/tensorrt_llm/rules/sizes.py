"""Sizes of an engine that the builder would change unseen."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.rules.problem import Rule, wrong
from pipeline.config.faults import Fault

# Room for a prompt and an answer below which an engine is of no use.
_LEAST_SEQ_LEN = 16


def sizes_are_those_of_the_built_engine(context: BuildContext) -> Iterator[Fault]:
    """engine.max_seq_len includes the drafts; the rest is what requests can use. With any speculative mode the builder
    raises max_num_tokens to max_batch_size * (max_draft_len + 1)."""
    engine = context.engine
    for mode in context.modes:
        drafts = context.max_draft_len(mode)
        name = context.resolved.profile.name
        key = "tensorrt_llm.max_external_draft_len" if mode == "trie" else f"model.lookahead.{name}"
        if (left := context.asked_seq_len(mode)) < _LEAST_SEQ_LEN:
            reason = f"the '{mode}' engine reserves {drafts} draft tokens, which leaves {left} for prompt and output"
            yield wrong("engine.max_seq_len", engine.max_seq_len, reason, f"Raise it, or draft less ({key}).")
        needed = engine.max_batch_size * (drafts + 1)
        if mode != "none" and needed > engine.max_num_tokens:
            yield wrong(
                "engine.max_num_tokens",
                engine.max_num_tokens,
                f"the builder would raise it unseen to {needed} = engine.max_batch_size {engine.max_batch_size} x "
                f"({drafts} drafts + 1) for the '{mode}' engine",
                f"Raise it yourself, or lower engine.max_batch_size or {key}.",
                f"engine.max_num_tokens={needed}",
                f"engine.max_batch_size={max(1, engine.max_num_tokens // (drafts + 1))}",
            )


def external_prefix_fits_into_a_pass(context: BuildContext) -> Iterator[Fault]:
    """Each step of external drafts sends prompt, output so far and drafts as one prompt."""
    engine = context.engine
    is_chunked = context.trt.enable_chunked_context
    if "trie" in context.modes and not is_chunked and engine.max_num_tokens < engine.max_seq_len:
        yield wrong(
            "engine.max_num_tokens",
            engine.max_num_tokens,
            f"with tensorrt_llm.speculation = '{context.trt.speculation}' each step sends prompt, output and drafts "
            f"again, up to engine.max_seq_len = {engine.max_seq_len} tokens in one pass",
            "Raise it to that, or set tensorrt_llm.enable_chunked_context to true.",
            f"engine.max_num_tokens={engine.max_seq_len}",
            "tensorrt_llm.enable_chunked_context=true",
        )


RULES: tuple[Rule, ...] = (
    sizes_are_those_of_the_built_engine,
    external_prefix_fits_into_a_pass,
)

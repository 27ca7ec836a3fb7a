"""Sizes of an engine: what the builder would change unseen, and what the engine could then not hold."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.rules.problem import Rule, build_flag
from pipeline.config.faults import Fault, fault
from pipeline.engine.chains import Mode

# Room for a prompt and an answer below which an engine is of no use.
_LEAST_SEQ_LEN = 16


def drafts_leave_room(case: Case) -> Iterator[Fault]:
    """engine.max_seq_len includes the drafts; the rest is what requests can use."""
    for mode in case.modes:
        if (left := case.asked_seq_len(mode)) < _LEAST_SEQ_LEN:
            yield fault(
                "engine.max_seq_len",
                f"found {case.engine.max_seq_len}; the '{mode}' engine reserves {case.max_draft_len(mode)} draft "
                f"tokens of it, which leaves {left} for prompt and output.",
                f"Raise it, or draft less ({_draft_key(case, mode)}).",
            )


def a_full_batch_fits_into_a_pass(case: Case) -> Iterator[Fault]:
    """With any speculative mode the builder raises max_num_tokens to max_batch_size * (max_draft_len + 1)."""
    for mode in case.modes:
        needed = case.engine.max_batch_size * (case.max_draft_len(mode) + 1)
        if mode != "none" and needed > case.engine.max_num_tokens:
            yield fault(
                "engine.max_num_tokens",
                f"found {case.engine.max_num_tokens}; the builder would raise it unseen to {needed} = "
                f"engine.max_batch_size {case.engine.max_batch_size} x ({case.max_draft_len(mode)} drafts + 1) for the "
                f"'{mode}' engine.",
                f"Raise it yourself, or lower engine.max_batch_size or {_draft_key(case, mode)}.",
                fixes=(
                    f"engine.max_num_tokens={needed}",
                    f"engine.max_batch_size={max(1, case.engine.max_num_tokens // (case.max_draft_len(mode) + 1))}",
                ),
            )


def external_prefix_fits_into_a_pass(case: Case) -> Iterator[Fault]:
    """Each step of external drafts sends prompt, output so far and drafts as one prompt."""
    if "trie" not in case.modes or case.trt.enable_chunked_context:
        return
    if case.engine.max_num_tokens < case.engine.max_seq_len:
        yield fault(
            "engine.max_num_tokens",
            f"found {case.engine.max_num_tokens}; with tensorrt_llm.speculation = '{case.trt.speculation}' each step "
            f"sends prompt, output and drafts again, up to engine.max_seq_len = {case.engine.max_seq_len} tokens in "
            "one pass.",
            "Raise it to that, or set tensorrt_llm.enable_chunked_context to true.",
            fixes=(
                f"engine.max_num_tokens={case.engine.max_seq_len}",
                "tensorrt_llm.enable_chunked_context=true",
            ),
        )


def max_input_len_is_left_alone(case: Case) -> Iterator[Fault]:
    """trtllm-build ignores --max_input_len while padding is removed and context attention is fused."""
    if (
        "max_input_len" in case.trt.build_flags
        and case.enabled("remove_input_padding")
        and case.enabled("context_fmha")
    ):
        yield fault(
            build_flag("max_input_len"),
            f"found {case.flag('max_input_len')}; the builder ignores it while remove_input_padding and context_fmha "
            "are on.",
            "Remove it; engine.max_seq_len and engine.max_num_tokens bound the prompt.",
        )


def vendor_limit_of_drafts(case: Case) -> Iterator[Fault]:
    """Vendors of lookahead engines stop at 2048 draft tokens."""
    if "lookahead" in case.modes and (found := case.max_draft_len("lookahead")) > 2048:
        yield fault(
            "model.lookahead",
            f"W, N, G of '{case.resolved.profile.name}' need {found} draft tokens per step; engines beyond 2048 are "
            "not known to work.",
            "Choose smaller values.",
        )


def _draft_key(case: Case, mode: Mode) -> str:
    return "tensorrt_llm.max_external_draft_len" if mode == "trie" else f"model.lookahead.{case.resolved.profile.name}"


RULES: tuple[Rule, ...] = (
    drafts_leave_room,
    a_full_batch_fits_into_a_pass,
    external_prefix_fits_into_a_pass,
    max_input_len_is_left_alone,
    vendor_limit_of_drafts,
)

"""Sizes of an engine: what the builder would change unseen, and what the engine could then not hold."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.rules.problem import Problem, Rule, build_flag
from pipeline.engine.chains import Mode

# Room for a prompt and an answer below which an engine is of no use.
_LEAST_SEQ_LEN = 16


def drafts_leave_room(case: Case) -> Iterator[Problem]:
    """engine.max_seq_len includes the drafts; the rest is what requests can use."""
    for mode in case.modes:
        if (left := case.asked_seq_len(mode)) < _LEAST_SEQ_LEN:
            yield Problem(
                "engine.max_seq_len",
                f"found {case.engine.max_seq_len}; the '{mode}' engine reserves {case.max_draft_len(mode)} draft "
                f"tokens of it, which leaves {left} for prompt and output. Raise it, or draft less "
                f"({_draft_key(case, mode)}).",
            )


def a_full_batch_fits_into_a_pass(case: Case) -> Iterator[Problem]:
    """With any speculative mode the builder raises max_num_tokens to max_batch_size * (max_draft_len + 1)."""
    for mode in case.modes:
        needed = case.engine.max_batch_size * (case.max_draft_len(mode) + 1)
        if mode != "none" and needed > case.engine.max_num_tokens:
            yield Problem(
                "engine.max_num_tokens",
                f"found {case.engine.max_num_tokens}; the builder would raise it unseen to {needed} = "
                f"engine.max_batch_size {case.engine.max_batch_size} x ({case.max_draft_len(mode)} drafts + 1) for the "
                f"'{mode}' engine. Raise it yourself, or lower engine.max_batch_size or {_draft_key(case, mode)}.",
            )


def external_prefix_fits_into_a_pass(case: Case) -> Iterator[Problem]:
    """Each step of external drafts sends prompt, output so far and drafts as one prompt."""
    if "trie" not in case.modes or case.trt.enable_chunked_context:
        return
    if case.engine.max_num_tokens < case.engine.max_seq_len:
        yield Problem(
            "engine.max_num_tokens",
            f"found {case.engine.max_num_tokens}; with tensorrt_llm.speculation = '{case.trt.speculation}' each step "
            f"sends prompt, output and drafts again, up to engine.max_seq_len = {case.engine.max_seq_len} tokens in "
            "one pass. Raise it to that, or set tensorrt_llm.enable_chunked_context to true.",
        )


def max_input_len_is_left_alone(case: Case) -> Iterator[Problem]:
    """trtllm-build ignores --max_input_len while padding is removed and context attention is fused."""
    if (
        "max_input_len" in case.trt.build_flags
        and case.enabled("remove_input_padding")
        and case.enabled("context_fmha")
    ):
        yield Problem(
            build_flag("max_input_len"),
            f"found {case.flag('max_input_len')}; the builder ignores it while remove_input_padding and context_fmha "
            "are on. Remove it; engine.max_seq_len and engine.max_num_tokens bound the prompt.",
        )


def one_way_to_tune_for_sizes(case: Case) -> Iterator[Problem]:
    """multiple_profiles and opt_num_tokens exclude each other."""
    if case.enabled("multiple_profiles") and "opt_num_tokens" in case.trt.build_flags:
        yield Problem(
            build_flag("opt_num_tokens"),
            f"found {case.flag('opt_num_tokens')} beside multiple_profiles = 'enable'; the builder takes one of them. "
            "Remove one.",
        )


def opt_num_tokens_fits(case: Case) -> Iterator[Problem]:
    """The size that kernels are tuned for lies among those that can occur."""
    found = case.trt.build_flags.get("opt_num_tokens")
    if isinstance(found, int) and not 1 <= found <= case.engine.max_num_tokens:
        yield Problem(
            build_flag("opt_num_tokens"),
            f"found {found}; a pass holds 1 to engine.max_num_tokens = {case.engine.max_num_tokens} tokens.",
        )


def vendor_limit_of_drafts(case: Case) -> Iterator[Problem]:
    """Vendors of lookahead engines stop at 2048 draft tokens."""
    if "lookahead" in case.modes and (found := case.max_draft_len("lookahead")) > 2048:
        yield Problem(
            "model.lookahead",
            f"W, N, G of '{case.resolved.profile.name}' need {found} draft tokens per step; engines beyond 2048 are "
            "not known to work. Choose smaller values.",
        )


def _draft_key(case: Case, mode: Mode) -> str:
    return "tensorrt_llm.max_external_draft_len" if mode == "trie" else f"model.lookahead.{case.resolved.profile.name}"


RULES: tuple[Rule, ...] = (
    drafts_leave_room,
    a_full_batch_fits_into_a_pass,
    external_prefix_fits_into_a_pass,
    max_input_len_is_left_alone,
    one_way_to_tune_for_sizes,
    opt_num_tokens_fits,
    vendor_limit_of_drafts,
)

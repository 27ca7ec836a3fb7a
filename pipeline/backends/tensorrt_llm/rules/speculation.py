"""What lookahead decoding and external drafts each exclude."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.rules.problem import Rule, build_flag
from pipeline.config.faults import Fault, fault
from pipeline.engine.chains import triple_of

# Which of the query heads per key/value head, and which head sizes, the tree-attention kernels exist for.
_MAX_QUERIES_PER_KV = 32
_MAX_HEAD_SIZE = 256
_TESTED_QUANTIZATIONS = ("none", "fp8")
# NVIDIA's lookahead tests are skipped on GPUs from this compute capability on.
UNTESTED_GPUS = 100
_OPT_IN = "Set tensorrt_llm.allow_unvalidated to true to try it"


def triple_makes_drafts(case: Case) -> Iterator[Fault]:
    """trtllm-build takes a lookahead engine of max_draft_len 0 without a word."""
    if "lookahead" not in case.modes:
        return
    lookahead = case.resolved.lookahead
    if lookahead.max_draft_len == 0:
        yield fault(
            f"model.lookahead.{case.resolved.profile.name}",
            f"found (W, N, G) = {tuple(triple_of(lookahead))} (origin: {lookahead.origin}), which makes no drafts.",
            "Set values in the model config, at least (2, 2, 1), or tensorrt_llm.speculation to 'none'.",
        )


def lookahead_positions(case: Case) -> Iterator[Fault]:
    """The tree kernels know rotary and learned absolute positions."""
    if "lookahead" not in case.modes:
        return
    if case.positions == "alibi":
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; {case.model.name} ({case.model.architecture}) has ALiBi positions, for "
            "which no tree-attention kernel exists.",
            "Use 'trie' or 'none'.",
            fixes=(
                "tensorrt_llm.speculation=trie",
                "tensorrt_llm.speculation=none",
            ),
        )
    elif case.positions is None and case.shape is not None:
        yield fault(
            "model.shape.position_embedding",
            f"is missing; some models of {case.model.architecture} have ALiBi positions, with which lookahead decoding "
            "does not work.",
            "State 'rope' or 'alibi', or set tensorrt_llm.speculation to 'trie' or 'none'.",
        )


def lookahead_has_a_kernel(case: Case) -> Iterator[Fault]:
    """Else the run fails with an error that names missing XQA kernels."""
    if "lookahead" not in case.modes:
        return
    if case.resolved.dtype == "float32":
        yield fault(
            "model.gpu_dtype",
            "found 'float32'; lookahead decoding has kernels for float16 and bfloat16.",
            "Change it, or set tensorrt_llm.speculation to 'none'.",
        )
    if "no_xqa_kernel" in case.traits:
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; lookahead decoding of {case.model.architecture} is known to fail for "
            "lack of a kernel.",
            "Use 'trie' or 'none'.",
        )
    if case.shape is None:
        return
    size = case.shape.head_size
    if size % 16 or size > _MAX_HEAD_SIZE:
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; {case.model.name} has heads of size {size}, and lookahead decoding has "
            f"kernels for multiples of 16 up to {_MAX_HEAD_SIZE}.",
            "Use 'trie' or 'none'.",
        )
    ratio = case.shape.num_attention_heads / case.shape.num_key_value_heads
    if ratio > _MAX_QUERIES_PER_KV:
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; {case.model.name} has {ratio:.0f} query heads per key/value head, and "
            f"lookahead decoding has kernels for at most {_MAX_QUERIES_PER_KV}.",
            "Use 'trie' or 'none'.",
        )


def lookahead_sees_all_tokens(case: Case) -> Iterator[Fault]:
    """A limited attention window does not go together with the tree."""
    if "lookahead" not in case.modes:
        return
    window = case.shape.sliding_window if case.shape is not None else None
    reaches = window is not None and window < case.engine.max_seq_len
    if reaches or ("sliding_window" in case.traits and window is None):
        size = f" of {window} tokens" if window else ""
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; {case.model.name} has a sliding attention window{size}, which lookahead "
            "decoding does not combine with.",
            "Use 'trie' or 'none', or keep engine.max_seq_len within the window.",
            fixes=(
                "tensorrt_llm.speculation=trie",
                "tensorrt_llm.speculation=none",
            ),
        )


def recurrent_states_hold_one_text(case: Case) -> Iterator[Fault]:
    """A recurrent state cannot go back by a token, be cut into chunks, or be taken up in the middle of a text."""
    if "recurrent" not in case.traits:
        return
    name = case.model.architecture
    if case.modes != ("none",):
        yield fault(
            "tensorrt_llm.speculation",
            f"found '{case.trt.speculation}'; {name} keeps a recurrent state, which rejected drafts would spoil.",
            "Use 'none'.",
            fixes=("tensorrt_llm.speculation=none",),
        )
    if case.trt.enable_chunked_context:
        yield fault(
            "tensorrt_llm.enable_chunked_context",
            f"found true; the backend switches it off for {name}, which keeps a recurrent state.",
            "Remove it.",
        )
    if case.trt.enable_kv_cache_reuse:
        yield fault(
            "tensorrt_llm.enable_kv_cache_reuse",
            f"found true; {name} keeps a recurrent state, which is not kept with the KV cache.",
            "Remove it.",
        )


def heads_of_their_own(case: Case) -> Iterator[Fault]:
    """Medusa, ReDrafter and EAGLE checkpoints are bound to their own mode."""
    if "own_speculation" in case.traits:
        yield fault(
            "model.architecture",
            f"found {case.model.architecture}, whose checkpoints only work in their own speculative mode, which this "
            "pipeline does not build.",
            "Use the plain model.",
        )


def lookahead_ranks(case: Case) -> Iterator[Fault]:
    """Context parallelism excludes the tree; only tensor parallelism is documented beside it."""
    if "lookahead" not in case.modes:
        return
    if case.trt.context_parallel > 1:
        yield fault(
            "tensorrt_llm.context_parallel",
            f"found {case.trt.context_parallel}; lookahead decoding does not work with context parallelism.",
            "Set it to 1.",
        )
    if case.model.parallelism.pipeline > 1 and not case.trt.allow_unvalidated:
        yield fault(
            "model.parallelism.pipeline",
            f"found {case.model.parallelism.pipeline}; lookahead decoding is documented with tensor parallelism only.",
            f"Set it to 1. {_OPT_IN}.",
        )


def lookahead_on_tested_numbers(case: Case) -> Iterator[Fault]:
    """The support matrix has FP16, BF16 and FP8."""
    if (
        "lookahead" in case.modes
        and case.trt.quantization not in _TESTED_QUANTIZATIONS
        and not case.trt.allow_unvalidated
    ):
        yield fault(
            "tensorrt_llm.quantization",
            f"found '{case.trt.quantization}'; lookahead decoding is documented for 16-bit and FP8 weights.",
            f"Use 'none' or 'fp8', or tensorrt_llm.speculation = 'trie'. {_OPT_IN}.",
        )


def lookahead_on_tested_gpus(case: Case) -> Iterator[Fault]:
    """See UNTESTED_GPUS."""
    if "lookahead" in case.modes and case.trt.compute_capability >= UNTESTED_GPUS and not case.trt.allow_unvalidated:
        yield fault(
            "tensorrt_llm.compute_capability",
            f"found {case.trt.compute_capability}; lookahead decoding is not tested on GPUs after Hopper (90).",
            f"Use tensorrt_llm.speculation = 'trie' or 'none'. {_OPT_IN}.",
            fixes=(
                "tensorrt_llm.speculation=trie",
                "tensorrt_llm.allow_unvalidated=true",
            ),
        )


def paged_context_where_needed(case: Case) -> Iterator[Fault]:
    """External drafts, KV reuse and chunked context run through paged context attention."""
    reason = case.paged_context_off
    if reason is None:
        return
    users = []
    if "trie" in case.modes:
        others = "'none'" if case.resolved.dtype == "float32" else "'lookahead' or 'none'"
        users.append(("tensorrt_llm.speculation", f"'{case.trt.speculation}'", f"use {others}"))
    if case.trt.enable_chunked_context:
        users.append(("tensorrt_llm.enable_chunked_context", "true", "set it to false"))
    if case.trt.enable_kv_cache_reuse:
        users.append(("tensorrt_llm.enable_kv_cache_reuse", "true", "leave it unset"))
    for key, found, remedy in users:
        yield fault(
            key, f"found {found}, which needs paged context attention, but {reason}.", f"Change that, or {remedy}."
        )


def explicit_paged_context_holds(case: Case) -> Iterator[Fault]:
    """What was asked for by name would not be there."""
    if case.trt.build_flags.get("use_paged_context_fmha") == "enable" and case.paged_context_off is not None:
        yield fault(
            build_flag("use_paged_context_fmha"),
            f"found 'enable', but {case.paged_context_off}.",
            "Change one of the two.",
        )


def explicit_fp8_context_holds(case: Case) -> Iterator[Fault]:
    """The builder turns FP8 context attention off or on unseen, by weights, KV cache and paged context attention."""
    asked = case.trt.build_flags.get("use_fp8_context_fmha")
    if asked == "enable" and case.fp8_context_off is not None:
        yield fault(build_flag("use_fp8_context_fmha"), f"found 'enable', but {case.fp8_context_off}.", "Remove it.")
    if asked == "disable" and case.fp8_context_forced:
        yield fault(
            build_flag("use_fp8_context_fmha"),
            "found 'disable', which the builder would switch on, as weights and KV cache are FP8.",
            "Remove it, or set tensorrt_llm.build_flags.use_paged_context_fmha to 'disable'.",
        )


def external_drafts_reuse_the_cache(case: Case) -> Iterator[Fault]:
    """The backend refuses to load an engine for external drafts without KV reuse."""
    if "trie" in case.modes and case.trt.enable_kv_cache_reuse is False:
        yield fault(
            "tensorrt_llm.enable_kv_cache_reuse",
            f"found false; with tensorrt_llm.speculation = '{case.trt.speculation}' each step finds its prefix in the "
            "cache, and the backend does not load without it.",
            "Remove it, or set it to true.",
        )


def default_strategy_has_its_engine(case: Case) -> Iterator[Fault]:
    """One speculative mode per engine: a lookahead engine cannot verify outside drafts, nor the other way round."""
    strategy = case.resolved.profile.drafting.strategy
    if strategy == "lookahead" and "lookahead" not in case.modes:
        yield fault(
            "drafting.strategy",
            f"found 'lookahead', for which tensorrt_llm.speculation = '{case.trt.speculation}' builds no engine.",
            "Use 'auto', or set the latter to 'lookahead' or 'both'.",
        )
    if strategy == "hybrid":
        yield fault(
            "drafting.strategy",
            "found 'hybrid'; a TensorRT-LLM engine has one speculative mode.",
            "Use 'auto' with tensorrt_llm.speculation "
            "= 'both', which serves two engines side by side, or backend: torch.",
        )


RULES: tuple[Rule, ...] = (
    triple_makes_drafts,
    lookahead_positions,
    lookahead_has_a_kernel,
    lookahead_sees_all_tokens,
    recurrent_states_hold_one_text,
    heads_of_their_own,
    lookahead_ranks,
    lookahead_on_tested_numbers,
    lookahead_on_tested_gpus,
    paged_context_where_needed,
    explicit_paged_context_holds,
    explicit_fp8_context_holds,
    external_drafts_reuse_the_cache,
    default_strategy_has_its_engine,
)

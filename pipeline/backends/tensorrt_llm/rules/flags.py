"""Further options of trtllm-build: known, well-typed, not set elsewhere, and possible together."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.case import Case, FlagValue
from pipeline.backends.tensorrt_llm.rules.problem import Rule, build_flag
from pipeline.config.faults import Fault, did_you_mean, fault, one_of

# Options that have a setting of their own, and where it is.
SET_ELSEWHERE = {
    "checkpoint_dir": "the pipeline, which converts the checkpoint",
    "output_dir": "the pipeline, which keeps the artefact",
    "output_timing_cache": "the pipeline, which keeps it beside the engine",
    "dry_run": "`lookahead engine --dry-run`",
    "max_batch_size": "engine.max_batch_size",
    "max_seq_len": "engine.max_seq_len",
    "max_decoder_seq_len": "engine.max_seq_len",
    "max_num_tokens": "engine.max_num_tokens",
    "speculative_decoding_mode": "tensorrt_llm.speculation",
    "max_draft_len": "model.lookahead (W, N, G) or tensorrt_llm.max_external_draft_len",
    "tokens_per_block": "tensorrt_llm.tokens_per_block",
    "logits_dtype": "tensorrt_llm.logits_dtype",
    "workers": "model.parallelism",
}
# Options that make no engine which could be served here.
_OF_NO_USE = {
    "build_config": "its plugin settings would be discarded and ours ignored; use the profile",
    "model_config": "it builds without weights",
    "model_cls_file": "the architecture comes from the model config",
    "model_cls_name": "the architecture comes from the model config",
    "paged_kv_cache": "it is deprecated; use kv_cache_type",
    "strip_plan": "the engine would hold no weights",
    "max_encoder_input_len": "only decoder models are served",
    "max_prompt_embedding_table_size": "only text is served",
    "max_multimodal_len": "only text is served",
}


def known_flags(case: Case) -> Iterator[Fault]:
    """Unknown names, values of the wrong type, and options that have a place of their own."""
    known = facts.build_flags()
    for name, value in case.trt.build_flags.items():
        if name in SET_ELSEWHERE:
            yield fault(build_flag(name), f"found {value!r}; it is set by {SET_ELSEWHERE[name]}.", "Remove it here.")
        elif name in _OF_NO_USE:
            yield fault(build_flag(name), f"found {value!r}; not to be used here: {_OF_NO_USE[name]}.", "Remove it.")
        elif name not in known:
            yield fault(
                build_flag(name),
                f"is no option of trtllm-build {facts.RELEASE_LINE}.{did_you_mean(name, known)} "
                "Names are written without dashes in front.",
            )
        elif name != "kv_cache_type" and (wrong := _wrong_value(known[name], value)):  # that one has but one use here
            yield fault(build_flag(name), f"found {value!r}; should be {wrong}.")


def _wrong_value(flag: facts.Flag, value: FlagValue) -> str | None:
    """What the value should be; None if it is fine."""
    if flag.type == "store_true":
        return None if isinstance(value, bool) else "true or false"
    if flag.type == "int":
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(value, bool):
        return f"{one_of(flag.choices)} in quotes" if flag.choices else "a text"
    if flag.choices and value not in flag.choices:
        return one_of(flag.choices)
    return None


def needed_for_serving(case: Case) -> Iterator[Fault]:
    """The builder makes an engine without these too, but the backend does not load it: models are served with in-flight
    batching."""
    needed = [("gpt_attention_plugin", "auto"), ("remove_input_padding", "enable")]
    if "recurrent" in case.traits:
        needed += [("mamba_conv1d_plugin", "auto"), ("paged_state", "enable")]
    for name, right in needed:
        if case.flag(name) == "disable":
            yield fault(
                build_flag(name),
                f"found 'disable'; engines are served with in-flight batching, which needs {right!r}.",
                "Remove it.",
            )


def one_beam(case: Case) -> Iterator[Fault]:
    """Drafts exclude beam search, and our front model serves one beam."""
    if (found := case.flag("max_beam_width")) == 1:
        return
    if case.modes == ("none",):
        reason = "requests are served with one beam, and more would cost memory for nothing"
    else:
        reason = f"an engine with tensorrt_llm.speculation = '{case.trt.speculation}' needs 1"
    yield fault(build_flag("max_beam_width"), f"found {found!r}; {reason}.", "Remove it.")


def paged_kv_cache(case: Case) -> Iterator[Fault]:
    """In-flight batching, KV reuse and every speculative mode need the paged KV cache."""
    if (found := case.flag("kv_cache_type")) not in (None, "paged"):
        yield fault(
            build_flag("kv_cache_type"), f"found {found!r}; in-flight batching and drafts need 'paged'.", "Remove it."
        )


def no_context_logits_with_drafts(case: Case) -> Iterator[Fault]:
    """The builder refuses gathered context logits together with max_draft_len > 0."""
    if all(case.max_draft_len(mode) == 0 for mode in case.modes):
        return
    for name in ("gather_context_logits", "gather_all_token_logits"):
        if case.flag(name):
            yield fault(
                build_flag(name),
                "found true; an engine with drafts cannot gather context logits.",
                "Remove it, or set tensorrt_llm.speculation to 'none'.",
            )


def lora_has_its_modules(case: Case) -> Iterator[Fault]:
    """The builder refuses the plugin without modules, after the conversion."""
    if case.flag("lora_plugin") != "disable" and not (case.flag("lora_target_modules") or case.flag("lora_dir")):
        yield fault(
            build_flag("lora_plugin"),
            f"found {case.flag('lora_plugin')!r} without target modules.",
            "Add "
            "tensorrt_llm.build_flags.lora_target_modules=attn_qkv or tensorrt_llm.build_flags.lora_dir, or remove it.",
        )


def user_buffer_has_its_place(case: Case) -> Iterator[Fault]:
    """The builder does not check this one."""
    if not case.enabled("user_buffer"):
        return
    lacks = [] if case.enabled("reduce_fusion") else ["without reduce_fusion"]
    if case.model.architecture != "LlamaForCausalLM":
        lacks.append(f"for {case.model.architecture}")
    if case.trt.quantization != "fp8":
        lacks.append(f"with tensorrt_llm.quantization = '{case.trt.quantization}'")
    if lacks:
        yield fault(
            build_flag("user_buffer"),
            f"found 'enable' {' and '.join(lacks)}; it is made for LlamaForCausalLM with 'fp8' and "
            "tensorrt_llm.build_flags.reduce_fusion = 'enable'.",
            "Remove it, or set those.",
        )


RULES: tuple[Rule, ...] = (
    known_flags,
    needed_for_serving,
    one_beam,
    paged_kv_cache,
    no_context_logits_with_drafts,
    lora_has_its_modules,
    user_buffer_has_its_place,
)

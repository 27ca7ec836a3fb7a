"""TensorRT-LLM checkpoint -> engine: all options of trtllm-build, and the expected result.

With a speculative mode, the builder adds max_draft_len to max_seq_len. `engine.max_seq_len` in our configs includes the
drafts, so the builder gets a smaller value. The engine's config.json contains the options as fields of BuildConfig,
with the speculative mode as a number; `readback` compares them with the expected values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BUILD_MODES, BuildContext, FlagValue
from pipeline.engine.traits import Mode

# Fields of BuildConfig that do not describe the engine.
_NOT_EXPECTED = ("input_timing_cache", "output_timing_cache", "visualize_network")


def build_flags_of(context: BuildContext, mode: Mode, checkpoint: Path, output: Path) -> dict[str, FlagValue]:
    """Options of trtllm-build. Includes all sizes and all options that matter for serving, even with default values."""
    trt, dtype = context.trt, context.resolved.dtype
    drafts = context.max_draft_len(mode)
    asked = context.asked_seq_len(mode)
    paged_context = context.paged_context_off is None
    flags: dict[str, FlagValue] = {
        "checkpoint_dir": str(checkpoint),
        "output_dir": str(output),
        "workers": context.world_size,
        "max_batch_size": context.engine.max_batch_size,
        "max_input_len": min(asked - 1, context.limits(mode).longest_prompt),
        "max_seq_len": asked,
        "max_num_tokens": context.max_num_tokens(mode),
        "max_beam_width": 1,
        "kv_cache_type": "paged",
        "logits_dtype": "float32",
        "gpt_attention_plugin": dtype,
        "gemm_plugin": _gemm_plugin(context),
        "nccl_plugin": dtype if context.world_size > 1 else "disable",
        "context_fmha": "enable",
        "remove_input_padding": "enable",
        "tokens_per_block": trt.tokens_per_block,
        "use_paged_context_fmha": "enable" if paged_context else "disable",
        "use_fp8_context_fmha": "enable" if context.fp8_context_forced else "disable",
        "multiple_profiles": "disable",
        "output_timing_cache": str(output.parent / "model.cache"),
    }
    if (name := BUILD_MODES[mode]) is not None:
        flags |= {"speculative_decoding_mode": name, "max_draft_len": drafts}
    flags |= trt.build_flags
    if flags["multiple_profiles"] == "disable":
        # The builder selects kernels for a pass in which every sequence of a full batch decodes.
        flags.setdefault("opt_num_tokens", min(context.step_tokens(mode), context.limited_num_tokens(mode)))
    return flags


def expected_config(context: BuildContext, mode: Mode, flags: Mapping[str, FlagValue]) -> dict[str, Any]:
    """Expected build_config in the engine's config.json: the options as JSON of BuildConfig, with PluginConfig inside,
    and with the builder's change of max_seq_len. The rules refuse options that the builder would change as well."""
    known, fields = release_data.release().build_flags, release_data.release().build_config_fields
    config: dict[str, Any] = {}
    plugins: dict[str, Any] = {"dtype": context.resolved.dtype}
    for name, value in flags.items():
        if known[name].group == "plugin":
            plugins[name] = _plugin_value(known[name], value)
        elif name == "gather_all_token_logits":
            config |= {"gather_context_logits": value, "gather_generation_logits": value}
        elif name == "speculative_decoding_mode":
            config[name] = release_data.release().speculative_decoding_modes[str(value).upper()]
        elif name in fields and name not in _NOT_EXPECTED:
            config[name] = value
    if flags.get("fast_build"):
        plugins["manage_weights"] = True
    config.setdefault("speculative_decoding_mode", release_data.release().speculative_decoding_modes["NONE"])
    config.setdefault("max_draft_len", 0)
    config["max_seq_len"] = int(config["max_seq_len"]) + context.max_draft_len(mode)
    # The builder may replace "auto" by the selected type, so "auto" is not compared.
    return {**config, "plugin_config": {name: value for name, value in plugins.items() if value != "auto"}}


def _plugin_value(flag: release_data.Flag, value: FlagValue) -> FlagValue | None:
    """Convert the value of a plugin option to JSON: a switch to a boolean, a disabled plugin to null."""
    if flag.choices == ("enable", "disable"):
        return value == "enable"
    return None if value == "disable" else value


def _gemm_plugin(context: BuildContext) -> str:
    """Value of gemm_plugin that NVIDIA recommends: the model's type for 16-bit models, off for FP8 and for streamed
    weights, nvfp4 for FP4."""
    if context.flag("weight_streaming"):
        return "disable"
    return {"fp8": "disable", "nvfp4": "nvfp4"}.get(context.trt.quantization, context.resolved.dtype)


def build_argv(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """The command with these options."""
    known = release_data.release().build_flags
    words = ["trtllm-build"]
    for name, value in flags.items():
        if known[name].type != "store_true":
            words += [f"--{name}", *release_data.flag_words(known[name], value)]
        elif value:
            words.append(f"--{name}")
    return tuple(words)

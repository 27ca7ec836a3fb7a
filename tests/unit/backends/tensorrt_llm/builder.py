"""What trtllm-build of release line 1.2 makes of its command line: the config.json of the engine, or its error."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.backends.tensorrt_llm import release_data
from tests.trt_configs import RELEASE_FACTS

FP8_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")


class BuilderError(Exception):
    """trtllm-build ends with an error."""


def build_parser() -> argparse.ArgumentParser:
    """trtllm-build's options as the release data lists them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, flag in release_data.release().build_flags.items():
        if flag.type == "store_true":
            parser.add_argument(f"--{name}", action="store_true")
        else:
            kind = int if flag.type == "int" else str
            parser.add_argument(
                f"--{name}", type=kind, choices=flag.choices or None, default=flag.default, nargs=flag.nargs
            )
    return parser


def built_config(argv: Sequence[str], checkpoint: Mapping[str, Any], compute_capability: int) -> dict[str, Any]:
    """The config.json of the engine. checkpoint: config.json of the converted checkpoint. Raises BuilderError."""
    asked = vars(build_parser().parse_args(list(argv[1:])))
    sizes = {name: asked[name] for name in RELEASE_FACTS["build_config_fields"] if name in asked}
    plugins = {
        name: _plugin_value(name, asked[name]) for name in RELEASE_FACTS["plugin_config_fields"] if name in asked
    }
    for name in ("gather_context_logits", "gather_generation_logits"):
        sizes[name] = asked[name] or asked["gather_all_token_logits"]
    mode = (asked["speculative_decoding_mode"] or "none").upper()
    sizes["speculative_decoding_mode"] = release_data.release().speculative_decoding_modes[mode]
    _refuse(asked, sizes, plugins, checkpoint, compute_capability)
    _change_sizes(sizes, plugins, drafts=mode != "NONE")
    _change_plugins(plugins, checkpoint, compute_capability)
    plugins |= {"dtype": checkpoint["dtype"], "manage_weights": asked["fast_build"]}
    pretrained = {**checkpoint, "logits_dtype": asked["logits_dtype"] or checkpoint.get("logits_dtype")}
    return {
        "version": "1.2.1",
        "pretrained_config": pretrained,
        "build_config": {**sizes, "plugin_config": plugins},
    }


def _plugin_value(name: str, value: Any) -> Any:
    switch = release_data.release().build_flags[name].choices == ("enable", "disable")
    return value == "enable" if switch else None if value == "disable" else value


def _refuse(
    asked: Mapping[str, Any],
    sizes: Mapping[str, Any],
    plugins: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    sm: int,
) -> None:
    if sizes["gather_context_logits"] and asked["max_draft_len"] > 0:
        raise BuilderError("context logits with drafts")
    if plugins["multiple_profiles"] and asked["opt_num_tokens"] is not None:
        raise BuilderError("opt_num_tokens with multiple_profiles")
    if plugins["pp_reduce_scatter"] and checkpoint["architecture"] != "MixtralForCausalLM":
        raise BuilderError("pp_reduce_scatter is for Mixtral")
    fused = plugins["gemm_swiglu_plugin"] or plugins["low_latency_gemm_swiglu_plugin"]
    if fused and not plugins["use_fused_mlp"]:
        raise BuilderError("SwiGLU plugins need use_fused_mlp")
    other = (
        "gemm_swiglu_plugin",
        "fp8_rowwise_gemm_plugin",
        "low_latency_gemm_plugin",
        "low_latency_gemm_swiglu_plugin",
    )
    if sm == 100 and any(plugins[name] for name in (*other, "bert_context_fmha_fp32_acc")):
        raise BuilderError("not on SM 100")
    quantization = checkpoint["quantization"]
    integers = quantization["quant_algo"] in ("W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ")
    if 100 <= sm < 120 and (integers or quantization["kv_cache_quant_algo"] == "INT8"):
        raise BuilderError("no integers on SM 100 to 119")


def _change_sizes(sizes: dict[str, Any], plugins: Mapping[str, Any], drafts: bool) -> None:
    length, batch, block = sizes["max_seq_len"], sizes["max_batch_size"], plugins["tokens_per_block"]
    sizes["max_input_len"] = min(sizes["max_input_len"], length)
    tokens = min(sizes["max_num_tokens"], length * batch)
    tokens = max(tokens, block if plugins["context_fmha"] else sizes["max_input_len"])
    if sizes["opt_num_tokens"] is None and not plugins["multiple_profiles"]:
        sizes["opt_num_tokens"] = batch * sizes["max_beam_width"]
    if sizes["opt_num_tokens"] is not None:
        sizes["opt_num_tokens"] = min(sizes["opt_num_tokens"], tokens)
    if drafts:
        sizes["max_seq_len"] = length + sizes["max_draft_len"]
        tokens = max(tokens, batch * (sizes["max_draft_len"] + 1))
    sizes["max_num_tokens"] = tokens


def _change_plugins(plugins: dict[str, Any], checkpoint: Mapping[str, Any], sm: int) -> None:
    architecture, mapping, dtype = checkpoint["architecture"], checkpoint["mapping"], checkpoint["dtype"]
    weights, cache = checkpoint["quantization"]["quant_algo"], checkpoint["quantization"]["kv_cache_quant_algo"]
    plugins["paged_state"] &= architecture in ("MambaForCausalLM", "RecurrentGemmaForCausalLM")
    plugins["reduce_fusion"] &= mapping["tp_size"] > 1 and architecture in ("LlamaForCausalLM", "Gemma2ForCausalLM")
    plugins["user_buffer"] &= plugins["reduce_fusion"]
    plugins["norm_quant_fusion"] &= (
        not plugins["reduce_fusion"] and architecture == "LlamaForCausalLM" and weights == "NVFP4"
    )
    plugins["nccl_plugin"] = dtype if mapping["world_size"] > 1 else None
    if weights == "NVFP4" and plugins["gemm_plugin"] is not None:
        plugins["gemm_plugin"] = "nvfp4"
    fp8_context = plugins["context_fmha"] and weights in FP8_WEIGHTS and sm >= 89
    plugins["use_paged_context_fmha"] &= plugins["context_fmha"] and (cache != "FP8" or fp8_context)
    if plugins["use_paged_context_fmha"] and fp8_context:
        plugins["use_fp8_context_fmha"] = cache == "FP8"
    plugins["use_fp8_context_fmha"] &= fp8_context
    plugins["use_paged_context_fmha"] &= cache != "INT8"

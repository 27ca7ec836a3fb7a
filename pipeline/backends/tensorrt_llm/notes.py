"""Notes about a valid plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.conversion import calibration_folder, method_of


def notes_of(context: BuildContext) -> Iterator[str]:
    """Yield the notes, one sentence each."""
    trt, engine, modes, name = context.trt, context.engine, context.modes, context.model.architecture
    drafting = context.resolved.profile.drafting
    yield "No part of this plan has been run with TensorRT-LLM; it is checked against the documented contract."
    if "lookahead" in modes:
        yield from _of_lookahead(context)
    if "trie" in modes and drafting.max_draft_len > (most := trt.max_external_draft_len):
        yield (
            f"drafting.max_draft_len = {drafting.max_draft_len}: chains are cut to tensorrt_llm.max_external_draft_len "
            f"= {most}."
        )
    if "trie" in modes and trt.enable_chunked_context:
        yield "With chunked context the scheduler may drop drafts of a step when the pass is full."
    for mode in modes:
        if (tokens := context.max_num_tokens(mode)) < engine.max_num_tokens:
            yield (
                f"engine.max_num_tokens = {engine.max_num_tokens}: the '{mode}' engine gets {tokens}, which no "
                "pass over all its sequences exceeds."
            )
    if drafting.strategy == "trie" and "trie" not in modes:
        yield (
            "drafting.strategy = 'trie' belongs to the torch engine here; with tensorrt_llm.speculation = "
            f"'{trt.speculation}' no engine verifies external drafts."
        )
    if (texts := calibration_folder(context)) is not None:
        yield from _of_calibration(context, texts)
    if release_data.release().model_map.get(name) == "RecurrentGemmaForCausalLM":
        yield (
            "The conversion script imports flax, orbax and recurrentgemma, which the container lacks: install the "
            "requirements.txt beside the script where it runs."
        )
    if context.model.trust_remote_code:
        yield "The conversion runs Python code that comes with the checkpoint (model.trust_remote_code)."
    if "sliding_window" in context.traits:
        yield f"{name} limits attention in some layers; the engine keeps the KV cache of all tokens."


def _of_calibration(context: BuildContext, texts: Path) -> Iterator[str]:
    if method_of(context) != "convert_checkpoint.py":
        column = "article" if "cnn_dailymail" in str(texts) else "text"
        yield f"Calibration reads column '{column}' of split 'train' in {texts}."
    elif not any(word in str(texts) for word in ("cnn_dailymail", "lambada")):
        yield (
            f"The conversion script finds no texts in {texts}: it recognizes columns by the path, 'cnn_dailymail' "
            "(split 'train', column 'article') or 'lambada' (split 'validation', column 'text'). Rename the folder."
        )


def _of_lookahead(context: BuildContext) -> Iterator[str]:
    w, _, g = context.resolved.lookahead.sizes
    yield "The lookahead engine decodes greedily; sampling, penalties and banned words have no effect on it."
    if g > w:
        yield f"G = {g} is more than W = {w}; only {w} candidates are verified per step."
    if (drafts := context.max_draft_len("lookahead")) > 512:
        yield f"{drafts} draft tokens per step; vendors warn above 512."
    if context.trt.compute_capability not in release_data.release().lookahead_tested_on:
        yield f"NVIDIA's lookahead tests do not name compute capability {context.trt.compute_capability}."
    if context.trt.enable_kv_cache_reuse:
        yield "KV reuse together with lookahead decoding is not tested by NVIDIA."
    if context.trt.enable_chunked_context:
        yield "Chunked context together with lookahead decoding is not tested by NVIDIA."

"""What a user should know of a plan although nothing is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.conversion import calibration_folder, method_of
from pipeline.backends.tensorrt_llm.speculation import effective_branches
from pipeline.engine.chains import triple_of


def notes_of(case: Case) -> Iterator[str]:
    """One sentence each."""
    yield "No part of this plan has been run with TensorRT-LLM; it is checked against the documented contract."
    if "lookahead" in case.modes:
        yield from _of_lookahead(case)
    if "trie" in case.modes:
        yield from _of_external(case)
    for mode in case.modes:
        if (tokens := case.max_num_tokens(mode)) < case.engine.max_num_tokens:
            yield (
                f"engine.max_num_tokens = {case.engine.max_num_tokens}: the '{mode}' engine gets {tokens}, as its "
                "sequences hold no more together."
            )
    if case.engine.max_num_tokens > 16384:
        yield f"engine.max_num_tokens = {case.engine.max_num_tokens}: the builder warns above 16384."
    strategy = case.resolved.profile.drafting.strategy
    if strategy == "trie" and "trie" not in case.modes:
        yield (
            "drafting.strategy = 'trie' belongs to the torch engine here; with tensorrt_llm.speculation = "
            f"'{case.trt.speculation}' there is no engine that verifies drafts from outside."
        )
    if (texts := calibration_folder(case)) is not None:
        yield from _of_calibration(case, texts)
    if facts.model_class(case.model.architecture) == "RecurrentGemmaForCausalLM":
        yield (
            "The conversion script imports flax, orbax and recurrentgemma, which the container lacks: install the "
            "requirements.txt beside the script where it runs."
        )
    if case.model.trust_remote_code:
        yield "The conversion runs Python code that comes with the checkpoint (model.trust_remote_code)."
    if "sliding_window" in case.traits:
        yield f"{case.model.architecture} limits attention in some layers; the engine keeps the KV cache of all tokens."


def _of_calibration(case: Case, texts: Path) -> Iterator[str]:
    if method_of(case) != "convert_checkpoint.py":
        yield f"Calibration reads column 'text' of split 'train' in {texts}."
    elif not any(word in str(texts) for word in ("cnn_dailymail", "lambada")):
        yield (
            f"The conversion script finds no texts in {texts}: it tells columns by the path, 'cnn_dailymail' (split "
            "'train', column 'article') or 'lambada' (split 'validation', column 'text'). Rename the folder."
        )


def _of_lookahead(case: Case) -> Iterator[str]:
    w, _, g = triple = triple_of(case.resolved.lookahead)
    yield "The lookahead engine decodes greedily; sampling, penalties and banned words have no effect on it."
    if g > w:
        yield f"G = {g} is more than W = {w}; only {effective_branches(triple)} candidates are verified per step."
    if g == 0:
        yield "G = 0 cannot be given to the LLM API's LookaheadDecodingConfig; through Triton it can."
    if (drafts := case.max_draft_len("lookahead")) > 512:
        yield f"{drafts} draft tokens per step; vendors warn above 512."
    if case.trt.compute_capability not in facts.lookahead_tested_on():
        yield f"NVIDIA's lookahead tests do not name compute capability {case.trt.compute_capability}."
    if case.trt.enable_kv_cache_reuse:
        yield "KV reuse together with lookahead decoding is not tested by NVIDIA."
    if case.trt.enable_chunked_context:
        yield "Chunked context together with lookahead decoding is not tested by NVIDIA."


def _of_external(case: Case) -> Iterator[str]:
    most, longest = case.trt.max_external_draft_len, case.resolved.profile.drafting.max_draft_len
    if longest > most:
        yield f"drafting.max_draft_len = {longest}: chains are cut to tensorrt_llm.max_external_draft_len = {most}."
    if case.trt.enable_chunked_context:
        yield "With chunked context the scheduler may drop drafts of a step when the pass is full."

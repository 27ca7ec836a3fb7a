"""Arguments of `LLM()` from model.yaml and settings. NOT RUN with TensorRT-LLM, which the functions import.

If the installed release lacks a feature, the NGram drafts of model.yaml stay, and the log has a warning.
"""

from __future__ import annotations

import logging
from typing import Any

from pipeline.llmapi.drafts import ChainDrafts
from pipeline.llmapi.settings import DraftSettings, suffix_automaton_arguments

logger = logging.getLogger(__name__)


def llm_arguments(model_yaml: dict[str, Any], settings: DraftSettings) -> dict[str, Any]:
    """Arguments of `LLM()`: those of model.yaml without `triton_config`, with the draft method of the settings.

    TensorRT-LLM's own helper reads model.yaml, as in the stock model. It converts `speculative_config` to an object in
    releases whose configs have no field `decoding_type`, because these refuse a dictionary.
    """
    from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

    max_num_requests = int(model_yaml["max_batch_size"])
    return with_speculation(update_llm_args_with_extra_dict({}, model_yaml), settings, max_num_requests)


def with_speculation(arguments: dict[str, Any], settings: DraftSettings, max_num_requests: int) -> dict[str, Any]:
    """Replace the `speculative_config` of model.yaml by the draft method of the settings."""
    if settings.method in ("auto", "suffix_automaton"):
        try:
            found = {**arguments, "speculative_config": _suffix_automaton(settings)}
            found.pop("disable_overlap_scheduler", None)  # not needed, because it drafts on the GPU
            return found
        except ImportError as error:
            logger.warning("this TensorRT-LLM has no suffix automaton (%s)", error)
    if settings.method in ("auto", "trie"):
        try:
            return {**arguments, "speculative_config": _user_provided(settings, max_num_requests)}
        except ImportError as error:
            logger.warning("this TensorRT-LLM does not support user-provided drafters (%s)", error)
    if settings.method not in ("ngram", "none"):
        logger.warning("using NGram drafts instead of %s", settings.method)
    return arguments


def _user_provided(settings: DraftSettings, max_num_requests: int) -> Any:
    from tensorrt_llm.llmapi import UserProvidedDecodingConfig

    from pipeline.llmapi.trie_drafter import TrieDrafter, TrieResources

    drafts = ChainDrafts(settings)
    return UserProvidedDecodingConfig(
        max_draft_len=settings.max_draft_len,
        drafter=TrieDrafter(drafts),
        resource_manager=TrieResources(drafts, max_num_requests),
    )


def _suffix_automaton(settings: DraftSettings) -> Any:
    from tensorrt_llm.llmapi import SADecodingConfig

    return SADecodingConfig(**suffix_automaton_arguments(settings))

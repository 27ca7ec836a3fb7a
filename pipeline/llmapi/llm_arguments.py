"""From model.yaml and settings to the arguments of `LLM()`. NOT RUN with TensorRT-LLM, which is imported inside.

Where an installed release lacks something, the NGram drafts of model.yaml stay, and the log says so. Drafts change the
speed, never the text.
"""

from __future__ import annotations

import logging
from typing import Any

from pipeline.llmapi.drafts import ChainDrafts
from pipeline.llmapi.settings import DraftSettings, suffix_automaton_arguments

logger = logging.getLogger(__name__)


def llm_arguments(model_yaml: dict[str, Any], settings: DraftSettings) -> dict[str, Any]:
    """Arguments of `LLM()`: those of model.yaml without `triton_config`, and the drafts that the settings ask for.

    Read by TensorRT-LLM's own helper, as the stock model does: releases whose configs have no field `decoding_type`
    refuse the text form of `speculative_config`, and get an object here; newer ones keep the text, which `LLM()` reads.
    """
    from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

    max_num_requests = int(model_yaml["max_batch_size"])
    return with_speculation(update_llm_args_with_extra_dict({}, model_yaml), settings, max_num_requests)


def with_speculation(arguments: dict[str, Any], settings: DraftSettings, max_num_requests: int) -> dict[str, Any]:
    """Arguments of `LLM()` with the drafts that the settings ask for in the place of those of model.yaml."""
    if settings.method in ("auto", "suffix_automaton"):
        try:
            found = {**arguments, "speculative_config": _suffix_automaton(settings)}
            found.pop("disable_overlap_scheduler", None)  # it drafts on the GPU, inside the pass
            return found
        except ImportError as error:
            logger.warning("the suffix automaton is not in this TensorRT-LLM (%s)", error)
    if settings.method in ("auto", "trie"):
        try:
            return {**arguments, "speculative_config": _user_provided(settings, max_num_requests)}
        except ImportError as error:
            logger.warning("this TensorRT-LLM takes no drafter of ours (%s)", error)
    if settings.method not in ("ngram", "none"):
        logger.warning("NGram drafts instead of %s", settings.method)
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

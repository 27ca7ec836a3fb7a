"""The helper that reads model.yaml."""

from __future__ import annotations

from typing import Any

import tensorrt_llm.llmapi as llmapi


def update_llm_args_with_extra_dict(llm_args: dict[str, Any], llm_args_dict: dict[str, Any]) -> dict[str, Any]:
    config = llm_args_dict.get("speculative_config")
    if config is not None and not llmapi.TAKES_TEXT:
        llm_args_dict["speculative_config"] = llmapi.config_of(config)
    return {**llm_args, **llm_args_dict}

"""How a model's turn in a conversation opens, as token ids."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError

from pipeline.decoding.request import as_token_ids
from pipeline.decoding.tree import IntArray
from pipeline.engine.artifact import Artifact


def opening_of(artifact: Artifact) -> IntArray:
    """[len >= 1] what the chat template puts in front of the model's answer; the model's first token where there is no
    template, or one that refuses an empty message."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(artifact.tokenizer_dir)
    if tokenizer.chat_template:
        with suppress(ValueError, TemplateError):
            ids = tokenizer.encode(_generation_prompt(tokenizer), add_special_tokens=False)
            if tokenizer.bos_token_id is not None and ids[:1] != [tokenizer.bos_token_id]:
                ids = [tokenizer.bos_token_id, *ids]
            return as_token_ids(ids)
    first = json.loads((artifact.engine_dir / "config.json").read_text(encoding="utf-8")).get("bos_token_id")
    return as_token_ids([first if isinstance(first, int) else 0])


def _generation_prompt(tokenizer: Any) -> str:
    """What a template adds where the model is to speak; the whole conversation if it adds nothing at its end."""
    message = [{"role": "user", "content": ""}]
    before, whole = (
        tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=adds) for adds in (False, True)
    )
    return str(whole).removeprefix(before) or str(whole)

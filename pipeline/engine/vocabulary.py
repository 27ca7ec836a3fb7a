"""The vocabulary of an artifact, for grammars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.decoding.grammar.compiler import Vocabulary, load_vocabulary
from pipeline.engine.artifact import Artifact
from pipeline.errors import RequestError


def artifact_vocabulary(artifact: Artifact, vocab_size: int) -> Vocabulary:
    """Load the vocabulary of an artifact. vocab_size: of the engine's logits. Raises RequestError if the artifact has
    no tokenizer that grammars support, or no end token."""
    path = artifact.tokenizer_dir / "tokenizer.json"
    if not path.is_file():
        raise RequestError("this model has no tokenizer.json, which grammars need; leave the guide out")
    text = path.read_text(encoding="utf-8")
    tokens = {token["content"]: token for token in json.loads(text).get("added_tokens", [])}
    special = frozenset(content for content, token in tokens.items() if token.get("special"))
    return load_vocabulary(text, vocab_size, _end_id(artifact, tokens), special)


def _end_id(artifact: Artifact, added_tokens: dict[str, Any]) -> int:
    """The first end token in the model's files."""
    for folder, name in (
        (artifact.engine_dir, "generation_config.json"),
        (artifact.engine_dir, "config.json"),
        (artifact.tokenizer_dir, "tokenizer_config.json"),
    ):
        values = _json(folder / name)
        end = values.get("eos_token_id")
        end = end[0] if isinstance(end, list) and end else end
        if isinstance(end, int):
            return end
        word = values.get("eos_token")
        word = word.get("content") if isinstance(word, dict) else word
        if word in added_tokens:
            return int(added_tokens[word]["id"])
    raise RequestError("this model's files name no end token, which grammars need; leave the guide out")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}

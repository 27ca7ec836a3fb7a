"""What a codec reads from an artefact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.checkpoint.byte_tokenizer import byte_tokenizer
from pipeline.serving.text_codec import load_codec


@pytest.mark.parametrize(
    ("named", "expected"), [(None, {1}), (5, {1, 5}), ([5, 9], {1, 5, 9}), ([9, 50256], {1, 9}), (-5, {1})]
)
def test_end_tokens_are_those_of_the_tokenizer_and_of_the_model_that_can_come(
    named: int | list[int] | None, expected: set[int], tmp_path: Path
) -> None:
    byte_tokenizer(300, 64).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}), encoding="utf-8")
    assert load_codec(tmp_path, tmp_path).end_ids == expected

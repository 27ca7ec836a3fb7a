"""Random weights are equal for equal seeds; impossible configs are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.fetch import fetch, known_content_hash
from pipeline.config.schema import RandomCheckpoint
from tests.unit.checkpoint.sources import TINY, fault, model_of


def test_random_checkpoint_has_weights_tokenizer_and_a_hash_that_is_known_before(made: Checkpoint) -> None:
    assert made.content_hash == known_content_hash(model_of(RandomCheckpoint(config=TINY)))
    assert {path.name for path in made.weight_files} == {"model.safetensors"}
    assert "tokenizer.json" in {path.name for path in made.folder.iterdir()}
    assert made.num_bytes > 0


def test_random_checkpoint_is_the_same_again_and_another_with_another_seed(made: Checkpoint, tmp_path: Path) -> None:
    again = fetch(model_of(RandomCheckpoint(config=TINY)), tmp_path)
    other = fetch(model_of(RandomCheckpoint(config=TINY, seed=1)), tmp_path)
    weights = made.weight_files[0].read_bytes()
    assert again.weight_files[0].read_bytes() == weights
    assert other.weight_files[0].read_bytes() != weights
    assert other.content_hash != made.content_hash


@pytest.mark.parametrize("text", ["the weather is fine", "Grüße, 世界 🙂🙃\n\t", "\x00\x7f<|eos", ""])
def test_random_tokenizer_gives_any_text_back(text: str, made: Checkpoint) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < 300
    assert len(tokenizer) == 300
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|turn|>user\nhi<|end|>\n<|turn|>assistant\n"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"vocab_size": 10}, "vocab_size: found 10; should be 260 to"),
        ({"vocab_size": "many"}, "vocab_size and max_position_embeddings should be whole numbers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0; should be 1 to 1024"),
        ({"num_attention_heads": 3}, "cannot be made from model.checkpoint.config"),
        ({"num_attention_heads": 0}, "cannot be made from model.checkpoint.config: integer division or modulo by zero"),
        ({"hidden_sizes": 16}, "config.hidden_sizes: unknown key of LlamaConfig. Did you mean 'hidden_size'?"),
    ],
)
def test_impossible_random_config_is_refused_and_leaves_nothing(
    change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert expected in fault(RandomCheckpoint(config={**TINY, **change}), tmp_path)
    assert list((tmp_path / "random").iterdir()) == []


def test_seeds_are_those_that_torch_has() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 9223372036854775807"):
        RandomCheckpoint(config=TINY, seed=2**63)


def test_older_names_of_a_setting_are_known(tmp_path: Path) -> None:
    made = fetch(model_of(RandomCheckpoint(config={**TINY, "rope_theta": 500.0})), tmp_path)
    config = json.loads((made.folder / "config.json").read_text(encoding="utf-8"))
    assert config["rope_parameters"]["rope_theta"] == 500.0

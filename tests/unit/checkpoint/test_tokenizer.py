"""The build writes tokenizer.json for every form of tokenizer."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from pipeline.checkpoint import convert
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from tests.unit.checkpoint.sources import train_pieces

TEXTS = ("the cat sat on the mat", "größe 日本語 🎉", "twice  two\n\nlines", "def f(x):\n    return x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder with a tokenizer.model alone, as Llama's first checkpoints have it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    train_pieces(folder / "tokenizer", TEXTS)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_full_disk_is_no_fault_of_the_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_tokenizer(Checkpoint(folder, None, "LlamaForCausalLM", "", ()), tmp_path / "own")
    monkeypatch.setattr(convert, "copy_tokenizer", fail)
    with pytest.raises(OSError, match="No space left"):  # `atomic_folder` reports it
        write_tokenizer(Checkpoint(tmp_path / "own", None, "LlamaForCausalLM", "", ()), tmp_path / "copy")


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentencepiece_model_is_converted_and_encodes_as_before(folder: Path, tmp_path: Path, text: str) -> None:
    write_tokenizer(Checkpoint(folder, None, "LlamaForCausalLM", "", ()), tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    converted = AutoTokenizer.from_pretrained(tmp_path)
    original = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = converted.encode(text, add_special_tokens=False)
    assert ids == original.encode(text)
    assert converted.decode(ids) == text
    assert converted.bos_token_id == original.bos_id()

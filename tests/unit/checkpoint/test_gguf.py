"""GGUF files: complete, truncated, and of another architecture."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from pipeline.checkpoint.fetch import fetch
from pipeline.config.bare_checkpoint import settings_from_gguf
from pipeline.config.schema import GgufCheckpoint
from pipeline.errors import ConfigError
from tests.unit.checkpoint.sources import fault, model_of, write_tensors


def write_gguf(path: Path, architecture: str = "llama", num_parts: int = 1, template: str = "") -> Path:
    writer = GGUFWriter(path, architecture)
    if num_parts > 1:
        writer.add_uint16("split.count", num_parts)
    if template:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", np.ones((64, 32), dtype=np.float32))
    write_tensors(writer)
    return path


def test_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    found = fetch(model_of(GgufCheckpoint(path=str(path))), tmp_path)
    assert (found.folder, found.gguf_file) == (tmp_path, "a.gguf")
    assert found.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_truncated_gguf_is_noticed(share: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    text = fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "is incomplete or damaged" in text or "is incomplete: it has" in text


def test_a_text_of_an_impossible_length_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    data = path.read_bytes()
    length = len("general.architecture").to_bytes(8, "little")
    path.write_bytes(data.replace(length + b"general.arch", (2**64 - 1).to_bytes(8, "little") + b"general.arch"))
    assert "is incomplete or damaged" in fault(GgufCheckpoint(path=str(path)), tmp_path)


def test_gguf_of_another_kind(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "mamba")
    text = fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "architecture 'mamba'" in text
    assert "Correct the config" in text
    assert "llama (LlamaForCausalLM or MistralForCausalLM)" in text
    path.write_bytes(b"PK\x03\x04 something else")
    assert "is not a GGUF file" in fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "There is no GGUF file" in fault(GgufCheckpoint(path=str(tmp_path / "b.gguf")), tmp_path)


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a-00001-of-00003.gguf", num_parts=3)
    assert "is one of 3 parts of a model" in fault(GgufCheckpoint(path=str(path)), tmp_path)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", template="abcde")
    path.write_bytes(path.read_bytes().replace(b"abcde", b"abc\xff\xff"))
    with pytest.raises(ConfigError, match=r"has a tokenizer\.chat_template that is not UTF-8"):
        settings_from_gguf(path)

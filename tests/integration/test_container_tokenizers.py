"""Tokenizers under the transformers release of NVIDIA's containers: the same ids, texts and prompts as under ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.checkpoint.fetch import fetch
from pipeline.checkpoint.random import byte_tokenizer
from pipeline.checkpoint.tokenizer_files import save_tokenizer
from pipeline.config.folders import Folders, folders
from pipeline.config.loading import names_in
from pipeline.config.resolution import load_model_config, resolve_config
from tests.container.environment import container_environment
from tests.container.text_path import MESSAGES, TEXTS
from tests.processes import running

pytestmark = pytest.mark.slow
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "


def own_files(folder: Path) -> Path:
    """A checkpoint as the hub has them: tokenizer.json and settings of transformers 4."""
    byte_tokenizer(512, 4096).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "added_tokens_decoder": {"1": {"content": "<|eos|>", "special": True}},
                "bos_token": {"__type": "AddedToken", "content": "<|bos|>"},
                "eos_token": "<|eos|>",
                "pad_token": "<|eos|>",
                "additional_special_tokens": ["<|turn|>", "<|end|>"],
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": TEMPLATE,
            }
        )
    )
    (folder / "chat_template.jinja").unlink()
    return folder


def of_transformers_5(folder: Path) -> Path:
    """A checkpoint that transformers 5 has saved, say after fine-tuning."""
    byte_tokenizer(512, 4096).save_pretrained(folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    return folder


def without_class(folder: Path) -> Path:
    """An older checkpoint, whose tokenizer's class only config.json tells."""
    settings = json.loads((own_files(folder) / "tokenizer_config.json").read_text())
    del settings["tokenizer_class"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    return folder


def of_sentencepiece(folder: Path) -> Path:
    """A checkpoint with tokenizer.model alone, as Llama's first have it."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*filter(None, TEXTS), "the quick brown fox jumps over the lazy dog"] * 4),
        model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=420, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        hard_vocab_limit=False, unk_id=0, bos_id=1, eos_id=2, minloglevel=2,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return folder


Check = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    """Compares the two releases on a written tokenizer; returns what they agree on. Each release has one process."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": folders().home}
    command = [sys.executable, "-m", "tests.container.text_path"]
    with running(command, **pipes) as own, running(command, env=container_environment(), **pipes) as container:

        def check(folder: Path) -> dict[str, Any]:
            for process in (own, container):
                print(folder, file=process.stdin, flush=True)  # type: ignore[call-overload]
            ours, theirs = (json.loads(process.stdout.readline()) for process in (own, container))  # type: ignore[union-attr]
            assert ours["transformers"].startswith("5.")
            assert theirs["transformers"].startswith("4.57.")
            assert theirs["results"] == ours["results"]
            results: dict[str, Any] = ours["results"]
            assert results["texts"][:4] == list(TEXTS[:4])
            for answer in results["bls"]:
                assert answer["text"].endswith("日本語 🎉\n  ")
            return results

        yield check


@pytest.mark.parametrize("source", [own_files, of_transformers_5, without_class, of_sentencepiece])
def test_a_written_tokenizer_is_the_checkpoints_own_under_both_releases(
    source: Callable[[Path], Path], check: Check, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = source(tmp_path / "checkpoint")
    write_tokenizer(Checkpoint(checkpoint, None, "LlamaForCausalLM", "", ()), tmp_path / "tokenizer")

    results = check(tmp_path / "tokenizer")

    original = AutoTokenizer.from_pretrained(checkpoint)
    assert results["ids"] == [original.encode(text) for text in TEXTS]
    assert results["chat"] == original.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    if source in (own_files, without_class):
        for path in (tmp_path / "tokenizer").iterdir():
            assert path.read_bytes() == (checkpoint / path.name).read_bytes()


def test_a_made_tokenizer_has_the_same_ids_under_both_releases(check: Check, tmp_path: Path) -> None:
    save_tokenizer(byte_tokenizer(512, 4096), tmp_path)
    assert check(tmp_path)["chat"] is not None


NOT_ON_THE_HUB = [
    name for name in names_in(folders().models) if load_model_config(name, folders()).checkpoint.source != "hub"
]


@pytest.mark.parametrize("name", NOT_ON_THE_HUB)
def test_every_shipped_model_that_needs_no_hub(name: str, where: Folders, check: Check, tmp_path: Path) -> None:
    """Tokenizer files of models on the hub are served unchanged, so they need no test here."""
    model = resolve_config(name, "latency", ("backend=torch", "device=cpu"), where=where).model
    write_tokenizer(fetch(model, where.cache), tmp_path / "tokenizer")
    assert check(tmp_path / "tokenizer")["chat"] is not None

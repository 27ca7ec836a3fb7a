"""Faults of a checkpoint give one message and exit code 2 before the build."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.fetch import fetch
from pipeline.config.resolution import resolve_config
from tests.command_line import exit_code

TORCH = ("--set", "backend=torch", "--set", "device=cpu")
TENSORRT_LLM = ("--set", "backend=tensorrt_llm", "--dry-run")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in which nothing is wrong."""
    model = resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu")).model
    return fetch(model, tmp_path_factory.mktemp("cache")).folder


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def with_many_layers(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=1_000_000)


def with_nan(folder: Path) -> None:
    edit(folder / "config.json", rms_norm_eps=float("nan"))


def with_a_broken_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template="{% for message in messages %}{{ message.content ")


def with_a_fifo_as_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def with_a_fifo_as_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


@pytest.mark.parametrize(
    ("spoil", "words", "sentence"),
    [
        (with_many_layers, TORCH, "num_hidden_layers: found 1000000; should be 1 to 1024."),
        (with_many_layers, TENSORRT_LLM, "need about"),
        (with_nan, TORCH, "rms_norm_eps in config.json: found NaN; should be a number."),
        (with_a_broken_template, TORCH, "The chat template of {folder} fails: unexpected end of template"),
        (with_a_fifo_as_config, TORCH, "{folder}/config.json is not a regular file. Replace it."),
        (with_a_fifo_as_weights, TORCH, "{folder}/model.safetensors is not a regular file. Replace it."),
    ],
)
def test_a_bad_checkpoint_is_one_sentence(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, spoil: Any, words: Any, sentence: str
) -> None:
    for name in ("ENGINES", "CACHE"):
        monkeypatch.setenv(f"LOOKAHEAD_{name}", str(tmp_path / name.lower()))
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    spoil(folder)

    assert exit_code("engine", "--model", str(folder), "--profile", "latency", *words) == 2
    *_, message = capsys.readouterr().err.strip().splitlines()
    assert message.startswith("error: ")
    assert sentence.format(folder=folder) in message
    assert not list((tmp_path / "engines").glob("*/*/manifest.json"))

"""Refusals of `lookahead bench` that need no engine come before it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import cli

WORDS = ("--model=tiny-random-llama", "--set=backend=torch", "--set=device=cpu", "--limit=1")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--temperature=-1", "temperature"),
        ("--seed=-1", "seed"),
        ("--baselines=vllm", "no baseline 'vllm'"),
        ("--concurrency=64", "--set engine.max_batch_size=64"),
    ],
)
def test_what_the_engine_cannot_change_is_refused_before_it_is_built(
    option: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))

    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *WORDS, option])

    assert caught.value.code == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [("bench",), ("bench", "--grammar"), ("tune",), ("verify", "--logits"), ("verify", "--grammar", "x.json")],
)
def test_an_engine_that_runs_in_a_server_only_is_not_built_to_measure_it_in_process(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main((*command, "-m", "llama2-13b", "--set", "backend=tensorrt_llm"))
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "those of backend tensorrt_llm run in a server only. Use --set backend=torch" in error
    assert "nvidia-smi" not in error

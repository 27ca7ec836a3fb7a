"""Refusals of `lookahead bench` that need no engine come before it is built."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.config.threads import WAIT_POLICY
from pipeline.errors import UserError
from tests.command_line import exit_code

WORDS = ("--model=tiny-random-llama", "--set=backend=torch", "--set=device=cpu", "--limit=1")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--temperature=-1", "temperature"),
        ("--seed=-1", "seed"),
        ("--baselines=vllm", "--baselines takes hf, hf-prompt-lookup, llama-cpp, llama-cpp-prompt-lookup; found"),
        ("--concurrency=64", "--set engine.max_batch_size=64"),
    ],
)
def test_what_the_engine_cannot_change_is_refused_before_it_is_built(
    option: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))

    assert exit_code("bench", *WORDS, option) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_results_that_cannot_be_saved_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("pipeline.cli.options.built_artifact", lambda resolved: None)
    monkeypatch.setattr("pipeline.bench.bench.run_bench", lambda *arguments: "the figures")
    monkeypatch.setattr("pipeline.bench.report.results.save_json", save)
    monkeypatch.setattr("pipeline.cli.bench.show_results", print)

    assert exit_code("bench", *WORDS, "--json=/dev/full") == 2
    printed = capsys.readouterr()
    assert printed.out == "the figures\n"
    assert "No space left on device" in printed.err


@pytest.mark.parametrize("command", ["bench", "verify"])
def test_a_measurement_through_the_running_server_names_its_profile(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report would name another profile than the one that was measured."""
    state = SimpleNamespace(grpc_url="127.0.0.1:8001", model="tiny-random-llama", profile="latency")
    monkeypatch.setattr("pipeline.server.state.find_server", lambda folder: state)
    monkeypatch.setattr("pipeline.bench.contenders.remote.check_address", lambda *arguments: None)
    assert exit_code(command, "-m", "tiny-random-llama", "-p", "throughput", "--url", "localhost:8001") == 2
    assert "serves tiny-random-llama with profile latency; name these with" in capsys.readouterr().err


def test_other_engines_wait_as_their_libraries_do_before_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def resolve(*arguments: object) -> None:
        seen.append(os.environ.get(WAIT_POLICY[0]))
        raise UserError("enough")

    monkeypatch.setattr("pipeline.cli.options.resolve", resolve)
    for options in ((), ("--baselines", "hf")):
        monkeypatch.setenv(*WAIT_POLICY)
        exit_code("bench", *options)
    assert seen == [WAIT_POLICY[1], None]


def test_a_load_of_an_unknown_strategy_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.bench.contenders.remote.check_address", lambda *arguments: None)
    assert exit_code("load", "--url", "127.0.0.1:1", "--strategies", "trie,magic") == 2
    assert "--strategies takes none, lookahead, trie, hybrid, auto; found 'magic'." in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("load", "--url", "127.0.0.1:1", "--duration"),
        ("batch", __file__, "--out=x", "--url=http://127.0.0.1:1/v1", "--timeout"),
        ("validate-gpu", "--load-seconds"),
        ("validate-gpu", "--stage-timeout"),
    ],
)
@pytest.mark.parametrize("duration", ["0", "inf", "nan", "1e300"])
def test_a_duration_that_no_deadline_can_hold_is_refused(
    command: tuple[str, ...], duration: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command, duration) == 2
    assert f"Invalid value for '{command[-1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("bench", "--grammar", "--turns=all"), "--turns has no effect with --grammar"),
        (("bench", "--grammar", "--baselines=hf"), "--baselines has no effect with --grammar"),
        (("bench", "--grammar", "--url=127.0.0.1:8001"), "--url has no effect with --grammar"),
        (("verify", "--failover", "--quick"), "--quick has no effect with --failover"),
        (("verify", "--failover", "--url=127.0.0.1:8001"), "--url has no effect with --failover"),
        (("verify", "--kills=3"), "--kills has no effect without --failover"),
    ],
)
def test_an_option_without_effect_is_refused(
    command: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.cli.failover.run_failover", lambda *arguments: None)
    assert exit_code(*command, "-m", "tiny-random-llama") == 2
    assert f"error: {expected}; leave it out." in capsys.readouterr().err


def test_a_cost_curve_beside_other_options_is_measured_with_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it needs no prompts. With --strategies or --limit these were ignored."""
    seen: list[str] = []

    def check_plan(*arguments: object) -> None:
        seen.append("checked")
        raise UserError("checked")

    monkeypatch.setattr("pipeline.bench.bench.check_plan", check_plan)
    monkeypatch.setattr("pipeline.bench.data.workload.load_workload", lambda *arguments: seen.append("prompts"))
    for options in ((), ("--json", "out.json"), ("--limit=2",)):
        exit_code("bench", "-m", "tiny-random-llama", "--cost-curve", *options)
    assert seen == ["checked", "checked", "prompts", "checked"]


@pytest.mark.parametrize(
    "command",
    [("bench",), ("bench", "--grammar"), ("tune",), ("verify", "--logits"), ("verify", "--grammar", "x.json")],
)
def test_an_engine_that_runs_in_a_server_only_is_not_built_to_measure_it_in_process(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command, "-m", "llama2-13b", "--set", "backend=tensorrt_llm") == 2
    error = capsys.readouterr().err
    assert "those of backend tensorrt_llm run in a server only. Use --set backend=torch" in error
    assert "nvidia-smi" not in error

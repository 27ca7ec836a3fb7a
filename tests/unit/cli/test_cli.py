"""The command line: exit codes, messages, JSON."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from safetensors import SafetensorError

from pipeline import cli
from pipeline.cli import output
from pipeline.cli.app import PANELS, PLUGINS, build_app
from pipeline.config.folders import folders
from pipeline.errors import ConfigError
from tests.command_line import exit_code
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "cache"))


def test_every_verb_explains_itself() -> None:
    app = build_app()
    assert all(verb.callback.__doc__ for verb in app.registered_commands if verb.callback)
    assert all(group.typer_instance.info.help for group in app.registered_groups if group.typer_instance)


@pytest.mark.parametrize("function", ["not_there.cli:commands", "of_another_version:commands"])
def test_commands_of_a_package_that_cannot_be_loaded_are_named(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "broken_commands-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: broken-commands\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{PLUGINS}]\nbroken = {function}\n")
    (tmp_path / "of_another_version.py").write_text("def commands():\n    from pipeline.cli import gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("pipeline.cli.app.build_app", build_app)

    assert exit_code("--version") == 2
    assert "The commands `broken` of an installed package cannot be loaded" in capsys.readouterr().err


def test_help_shows_each_verb_in_a_panel(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    starts = [text.index(f" {panel} ") for panel in (*PANELS, "Research")]
    assert starts == sorted(starts)
    for verbs, start, end in zip([*PANELS.values(), ["research"]], starts, [*starts[1:], len(text)], strict=True):
        assert all(f" {verb} " in text[start:end] for verb in verbs)


def test_help_breaks_lines_at_the_width_of_the_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert exit_code("--help") == 0
    assert "the old one continues." in capsys.readouterr().out
    for words in (("switch",), ("trie", "merge")):
        assert exit_code(*words, "--help") == 0
        text = capsys.readouterr().out.partition("╭")[0]
        assert all(line.rstrip().endswith((".", "]", "}...")) for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("words", [(), ("serve",), ("trie",), ("trie", "build")])
def test_help_shows_flags_without_a_value(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words, "--help") == 0
    text = capsys.readouterr().out
    assert "--help" in text
    assert "bool" not in text


def test_a_users_mistake_is_one_message_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("engine", "--model", "smolm2-135m") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: There is no model 'smolm2-135m'. Did you mean 'smollm2-135m'?")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_stdout_escapes_the_characters_that_it_lacks(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "größer \udcff.jsonl").write_text('{"token_ids": [1, 2]}')
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(stdout := io.BytesIO(), encoding="ascii"))
    snapshot = str(tmp_path / "größer \udcff.trie")
    assert exit_code("trie", "build", str(tmp_path / "größer \udcff.jsonl"), "--out", snapshot, *options) == 0
    sys.stdout.flush()
    assert b"gr\\xf6\\xdfer" in stdout.getvalue()


def test_a_wrong_option_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("engine", "--modle", "x") == 2
    assert "No such option" in capsys.readouterr().err


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_ctrl_c_is_quiet_and_exit_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("pipeline.cli.app.build_app", lambda: app_that_raises(KeyboardInterrupt()))
    assert exit_code() == 130
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_is_quiet_while_the_command_is_still_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pipeline.cli.app", Loading("pipeline.cli.app"))
    assert exit_code() == 130


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "", "/x/y"), "No space left on device (/x/y). Free some, name a file on"),
        (PermissionError(errno.EACCES, "", "/x"), "Permission denied (/x). Fix the permissions, or name another file"),
        (OSError(errno.EROFS, ""), "Read-only file system. Name folders"),
        (NotADirectoryError(errno.ENOTDIR, "", "/x"), "Not a directory (/x). A file is where a folder should be"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "No space left on device. Free some"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence_and_exit_2(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.cli.app.build_app", lambda: app_that_raises(error))
    assert exit_code() == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "", "x"), ZeroDivisionError("bug")])
def test_our_bug_keeps_its_trace_and_so_does_a_missing_file(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.app.build_app", lambda: app_that_raises(error))
    with pytest.raises(type(error)):
        cli.main([])


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of `lookahead` with the redirections of a shell."""
    return subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m pipeline {command}"],
        cwd=folders({}).home,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("profiles >/dev/full", 2, "No space left on device"),
        ("profiles >&-", 0, ""),
        ("generate <&- --url localhost:1", 2, "error: localhost:1 cannot be reached"),
    ],
)
def test_a_stdout_or_stdin_that_is_closed_or_full_is_no_trace(command: str, code: int, error: str) -> None:
    done = in_shell(command)
    assert done.returncode == code
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_nothing_changes_no_result_and_no_exit_code(stderr: str) -> None:
    listed, refused = in_shell(f"profiles {stderr}"), in_shell(f"engine --model nope {stderr}")
    assert (listed.returncode, refused.returncode, refused.stdout) == (0, 2, "")
    assert "balanced" in listed.stdout


WRITES = """
import sys, types
from pipeline import cli

def write(**options):
    from pipeline.cli import output
    output.write("text")

sys.modules["pipeline.cli.app"] = types.SimpleNamespace(build_app=lambda: write)
cli.main()
"""


def test_a_text_for_a_closed_stdout_is_no_trace() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, WRITES], stderr=subprocess.PIPE, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_note_without_a_reader_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        output.note("loading")
        monkeypatch.undo()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, writer)  # for what the file has buffered
        os.close(null)


def test_a_missing_home_folder_is_reported() -> None:
    for environment in ({"LOOKAHEAD_CACHE": "~nobody-of-that-name/x"}, {"LOOKAHEAD_ENGINES": "~nobody-of-that-name"}):
        with pytest.raises(ConfigError, match=r"~nobody-of-that-name.*there is no such user"):
            folders(environment)


def test_engine_dry_run_then_build_then_reuse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = ["engine", "--model", "tiny-random-llama", "--set", "device=cpu", "--set", "backend=torch", "--json"]
    assert exit_code(*base, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["plan"]["state"] == "not built"
    assert plan["resolved"]["model"]["name"] == "tiny-random-llama"
    assert not (tmp_path / "engines").exists()

    outcomes = []
    for _ in range(2):
        assert exit_code(*base) == 0
        outcomes.append(json.loads(capsys.readouterr().out)["outcome"])
    assert outcomes == ["built", "reused"]
    assert exit_code("models") == 0
    assert "tiny-random-llama" in capsys.readouterr().out
    assert exit_code("clean", "--dry-run") == 0
    assert (tmp_path / "engines" / "tiny-random-llama" / "latency").is_dir()
    assert exit_code("clean") == 0
    assert not (tmp_path / "engines" / "tiny-random-llama").exists()


@pytest.mark.parametrize("command", ["verify", "tune"])
def test_a_prompt_that_is_too_long_is_named_before_anything_is_measured(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text(
        json.dumps({"id": "short", "prompt": "a"}) + "\n" + json.dumps({"id": "long", "prompt": "x " * 5000})
    )
    settings = ("--model", "tiny-random-llama", "--set", "drafting.planner=fixed", "--set", "backend=torch")
    assert exit_code(command, *settings, "--data", str(data)) == 2
    error = capsys.readouterr().err
    assert "The prompt of row 'long' has" in error
    assert "measuring" not in error


def test_models_and_profiles_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("models", "--json") == 0
    assert "llama2-13b" in [model["name"] for model in json.loads(capsys.readouterr().out)]
    assert exit_code("profiles", "--json") == 0
    assert [profile["name"] for profile in json.loads(capsys.readouterr().out)] == ["balanced", "latency", "throughput"]


def test_a_faulty_config_is_named_and_the_others_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("models", "profiles"):
        (tmp_path / "configs" / kind).mkdir(parents=True)
        (tmp_path / "configs" / kind / "unknown.yaml").write_text("nonsense: 1\n")
        (tmp_path / "configs" / kind / "unreadable.yaml").write_text("engine: [\n")
    (tmp_path / "configs" / "profiles" / "conflict.yaml").write_text(
        "base: latency.yaml\nengine: {max_draft_tokens: 2000}\ndrafting: {max_draft_tokens: 2001}\n"
    )
    for command, known in (("models", "llama2-13b"), ("profiles", "throughput")):
        assert exit_code(command, "--json") == 2
        shown = capsys.readouterr()
        names = [entry["name"] for entry in json.loads(shown.out)]
        assert known in names
        assert not {"unknown", "unreadable", "conflict"} & set(names)
        assert f"configs/{command}/unknown.yaml:1: nonsense" in shown.err
        assert f"configs/{command}/unreadable.yaml is not valid YAML" in shown.err
        assert exit_code(command) == 2
        assert known in capsys.readouterr().out
    assert exit_code("profiles", "--model", "unknown") == 2
    assert capsys.readouterr().out == ""


def test_schema_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("dev", "generate", "--check") == 0
    assert "up to date" in capsys.readouterr().out


def test_doctor_reports_how_to_fix_what_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert exit_code("doctor", "--json") in (0, 2)
    findings = {finding["part"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["python"]["state"] == "ok"
    for finding in findings.values():
        assert finding["state"] != "fail" or finding["remedy"], f"{finding['part']} fails without a remedy"


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")


@pytest.mark.parametrize("command", [("bench",), ("bench", "--grammar"), ("verify",)])
def test_a_strategy_that_does_not_exist_is_refused_before_an_engine_is_built(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command, "--model", "tiny-random-llama", "--strategies", "none,magic") == 2

    assert "--strategies takes none, lookahead, trie, hybrid, auto; found 'magic'." in capsys.readouterr().err
    assert not folders().engines.exists()

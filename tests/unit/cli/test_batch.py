"""`lookahead batch`: source of the API key, and outputs that cannot be written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import exit_code
from tests.http_server import Handler, serving

seen_keys: list[str | None] = []


class Api(Handler):
    def do_POST(self) -> None:
        self.read()
        seen_keys.append(self.headers["authorization"])
        self.answer(b"{}")


@pytest.fixture
def url() -> Iterator[str]:
    seen_keys.clear()
    with serving(Api) as port:
        yield f"http://127.0.0.1:{port}/v1"


def run(folder: Path, out: Path, url: str) -> int:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}
    (folder / "in.jsonl").write_text(json.dumps(line))
    return exit_code("batch", str(folder / "in.jsonl"), "--out", str(out), "--url", url)


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"LOOKAHEAD_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}, "Bearer ours"),
        ({"OPENAI_API_KEY": "theirs"}, "Bearer theirs"),
        ({"LOOKAHEAD_API_KEY": "", "OPENAI_API_KEY": ""}, None),
        ({}, None),
    ],
)
def test_the_key_is_ours_else_openais(
    variables: dict[str, str], sent: str | None, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOKAHEAD_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert run(tmp_path, tmp_path / "out.jsonl", url) == 0
    assert seen_keys == [sent]
    assert json.loads((tmp_path / "out.jsonl").read_text())["custom_id"] == "a"


def test_an_output_that_cannot_be_written_is_reported_before_any_request(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "out.jsonl"):
        assert run(tmp_path, out, url) == 2
        assert f"{out} cannot be written" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "in.jsonl", url) == 2
    assert "in.jsonl is the input" in capsys.readouterr().err
    assert not seen_keys


@pytest.mark.parametrize("out", ["/dev/stdout", "/dev/null"])
def test_an_output_without_room_for_a_journal_is_refused(
    out: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal was /dev/stdout.partial: a trace for most users, and for root a file among the devices."""
    assert run(tmp_path, Path(out), url) == 2
    assert f"--out is {out}" in capsys.readouterr().err
    (tmp_path / "out.jsonl.partial").mkdir()
    assert run(tmp_path, tmp_path / "out.jsonl", url) == 2
    assert "out.jsonl.partial cannot be written: it is a folder" in capsys.readouterr().err
    assert not seen_keys


def test_the_requests_are_not_taken_for_the_journal(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, tmp_path / "out.jsonl", url)
    asked = (tmp_path / "in.jsonl").rename(tmp_path / "in.partial")
    assert exit_code("batch", str(asked), "--out", str(tmp_path / "in"), "--url", url) == 2
    assert "in.partial is the input" in capsys.readouterr().err
    assert asked.exists()

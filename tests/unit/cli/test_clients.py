"""generate and chat: prompts from pipes, addresses, options that exclude each other."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from pipeline.errors import RequestError
from pipeline.server.client import Completion, TextQuery
from tests.command_line import exit_code


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_prompt_that_is_not_utf8_is_one_message_and_exit_2(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for errors, sentence in (("strict", "Standard input is not UTF-8 text"), ("surrogateescape", "text_input holds")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8", errors=errors))
        assert exit_code(command, "--url", "127.0.0.1:1") == 2
        assert capsys.readouterr().err.startswith(f"error: {sentence}")


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[TextQuery]:
    """Queries sent by `generate` and `chat`; each gets the text "yes", and "where" its address and protocol."""
    queries: list[TextQuery] = []

    def complete(query: TextQuery, *address: str, on_text: Callable[[str], None]) -> Completion:
        queries.append(query)
        on_text(" ".join(address) if query.text_input == "where" else "yes")
        if query.text_input == "fails":
            raise RequestError("the server has failed")
        if query.text_input == "stop":
            raise KeyboardInterrupt
        return Completion("yes", "length", None, 1.0, (1.0,))

    monkeypatch.setattr("pipeline.server.client.complete", complete)
    return queries


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_piped_prompt_has_no_line_end(monkeypatch: pytest.MonkeyPatch, answered: list[TextQuery]) -> None:
    for text, *prompt in (("Hello",), ("Hello\n",), ("Hello\n\n",), ("Hello\n", "-")):
        pipe(monkeypatch, text)
        assert exit_code("generate", *prompt, "--url", "127.0.0.1:1") == 0
    assert [query.text_input for query in answered] == ["Hello", "Hello", "Hello\n", "Hello"]


def test_an_error_after_some_text_begins_on_its_own_line(
    answered: list[TextQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("generate", "fails", "--url", "127.0.0.1:1") == 2
    assert capsys.readouterr().out == "yes\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--url", "host:8001"), "host:8001 grpc"),
        (("--url", "http://host:8000/"), "http://host:8000 http"),
        (("--url", "host:8000", "--protocol", "http"), "http://host:8000 http"),
    ],
)
def test_the_url_selects_the_protocol(
    options: tuple[str, ...], expected: str, answered: list[TextQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("generate", "where", *options) == 0
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--url", "http://host:8000", "--protocol", "grpc"), "--protocol grpc takes a --url such as localhost:8001"),
        (("--url", "host:8001", "--system", "Be brief."), "--system needs --chat"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    options: tuple[str, ...], sentence: str, answered: list[TextQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("generate", "Hello", *options) == 2
    assert sentence in capsys.readouterr().err
    assert answered == []


def test_a_chat_over_a_pipe_has_answers_only_on_stdout(
    monkeypatch: pytest.MonkeyPatch, answered: list[TextQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "first\nsecond\n")
    assert exit_code("chat", "--url", "127.0.0.1:1") == 0
    printed = capsys.readouterr()
    assert printed.out == "yes\nyes\n"
    assert "finish reason length" in printed.err
    assert [message["role"] for message in json.loads(answered[1].messages or "")] == ["user", "assistant", "user"]


def test_ctrl_c_stops_the_reply_and_not_the_chat(
    monkeypatch: pytest.MonkeyPatch, answered: list[TextQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["stop", "go on"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, ""))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert exit_code("chat", "--url", "127.0.0.1:1") == 0
    printed = capsys.readouterr()
    assert printed.out == "yes\nyes\n"
    assert "stopped" in printed.err
    sent = json.loads(answered[1].messages or "")
    assert [message["content"] for message in sent] == ["stop", "yes", "go on"]


def test_ctrl_c_ends_a_chat_over_a_pipe(monkeypatch: pytest.MonkeyPatch, answered: list[TextQuery]) -> None:
    pipe(monkeypatch, "stop\nnext\n")
    assert exit_code("chat", "--url", "127.0.0.1:1") == 130
    assert len(answered) == 1

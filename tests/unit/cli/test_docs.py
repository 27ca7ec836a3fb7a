"""Commands on the pages: each verb, target and option exists."""

from __future__ import annotations

import re
import shlex

import pytest

from pipeline import cli
from pipeline.config.places import places

HOME = places({}).home
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
# Targets that are no call of the command.
RECIPES = {"setup", "setup-dev", "test", "check", "format", "docs"}
TARGETS = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def commands() -> list[str]:
    """Indented lines, continued ones joined, that begin with `lookahead` or `make`."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"^ {4}((?:lookahead|make) .+)$", text, flags=re.MULTILINE)
    return found


@pytest.mark.parametrize("line", commands())
def test_a_command_on_the_page_exists_with_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        target = words[0]
        assert target in TARGETS
        if target in RECIPES:
            return
        given = [word.partition("=")[2] for word in words[1:] if word.startswith("ARGS=")]
        words = [target, *(part for text in given for part in shlex.split(text))]
        if target == "switch":
            words += ["--profile", "throughput"]
    with pytest.raises(SystemExit) as caught:
        cli.main((*words, "--help"))
    assert not caught.value.code, capsys.readouterr().err


def test_the_pages_have_commands() -> None:
    assert len(commands()) > 40


SOURCES = "".join(
    "".join(re.findall(r'"([^"\n]*)"', path.read_text(encoding="utf-8")))
    for path in sorted((HOME / "pipeline").rglob("*.py"))
)


@pytest.mark.parametrize(
    "message",
    re.findall(r"^`(.+)`$", (HOME / "docs/troubleshooting.md").read_text(encoding="utf-8"), flags=re.MULTILINE),
)
def test_a_message_of_the_troubleshooting_page_exists(message: str) -> None:
    assert message in SOURCES

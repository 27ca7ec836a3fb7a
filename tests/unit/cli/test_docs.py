"""Commands in README and docs: options, names and settings exist, and the cheap commands run."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
from functools import cache
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
import yaml

from pipeline.config.folders import folders
from pipeline.config.loading import names_in
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ProfileConfig
from pipeline.repository.extra_tensors import LOOKAHEAD_BLS_INPUTS
from tests.command_line import exit_code
from tests.patience import PATIENCE_S

PLACES = folders({})
HOME = PLACES.home
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
MAKEFILE = (HOME / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z]+) +\?=", MAKEFILE, flags=re.MULTILINE))
# Commands of the pages that take at most a second and need neither engine, network nor server.
CHEAP = {
    "make models",
    "lookahead key",
    "lookahead engine --dry-run",
    "lookahead serve --dry-run",
    "lookahead dev versions",
}


@cache
def commands() -> list[str]:
    """Lines of indented blocks and code in sentences that begin with `lookahead` or `make`. A decision may name a
    command that was not adopted, so only its blocks count."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"^ {4}((?:lookahead|make) .+)$", text, flags=re.MULTILINE)
        if page.parent.name != "decisions":
            found += re.findall(r"`((?:lookahead|make) [^`\n]+)`", text)
    return sorted(set(found))


def words_of(line: str) -> list[str]:
    """Arguments of `lookahead` that a line stands for; empty for a target that calls other programs."""
    program, *words = shlex.split(line, comments=True)
    if program == "lookahead":
        return words
    target, *assignments = words
    assert target in TARGETS
    given = dict(word.split("=", 1) for word in assignments)
    assert set(given) <= VARIABLES
    called = re.search(rf"^{target}:.*\n\t\$\(LOOKAHEAD\) (.*)$", MAKEFILE, flags=re.MULTILINE)
    if called is None:
        return []
    recipe = re.sub(r"\$\(if .*\) ", "", called[1]).replace("$(WHICH)", '--model "$(MODEL)" --profile "$(PROFILE)"')
    values = {"MODEL": "smollm2-135m", "PROFILE": "latency", "ARGS": ""} | given
    return shlex.split(re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], recipe))


def option_values(words: list[str], *names: str) -> list[str]:
    return [value for name, value in pairwise(words) if name in names]


@pytest.mark.parametrize("line", commands())
def test_a_command_on_a_page_exists_with_its_options(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (words := words_of(line)):
        return
    monkeypatch.setattr("typer.rich_utils.rich_format_help", lambda **options: None)  # takes most of the time
    assert exit_code(*words, "--help") == 0, capsys.readouterr().err


@pytest.mark.parametrize("line", [line for line in commands() if "--set" in line])
def test_the_settings_of_a_command_on_a_page_are_accepted(line: str) -> None:
    words = words_of(line)
    model, profile = (option_values(words, *names) for names in (("--model", "-m"), ("--profile", "-p")))
    name = model[0] if model and model[0] in names_in(PLACES.models) else "smollm2-135m"
    assert profile in ([], ["latency"], ["balanced"], ["throughput"])
    # The page's snapshot is a file that its reader makes.
    settings = [value for value in option_values(words, "--set") if ".snapshot=" not in value]
    resolve_config(name, *(profile or ["latency"]), settings, where=PLACES, backend_rules=False)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_accepts_every_target_on_the_pages() -> None:
    targets = sorted({shlex.split(line)[1] for line in commands() if line.startswith("make ")})
    done = subprocess.run(
        ["make", "-n", *targets], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", sorted(CHEAP))
def test_a_cheap_command_of_the_pages_runs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in commands()
    words = words_of(line)
    code = exit_code(*words, *(["alice"] if words == ["key"] else []))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out


@pytest.mark.parametrize(
    "line",
    sorted(
        {line for page in PAGES for line in re.findall(r"^ {4}(curl (?:.+\\\n)*.+)", page.read_text(), re.MULTILINE)}
    ),
)
def test_a_request_on_a_page_names_a_path_and_fields_that_exist(line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "))
    path = next(urlsplit(f"//{word}").path for word in words if word.startswith("localhost"))
    body = json.loads(option_values(words, "-d")[0])
    if path.startswith("/v1/"):
        assert path == "/v1/chat/completions"
        assert set(body) <= {"model", "messages", "seed", "max_tokens"}
        return
    model, verb = re.fullmatch(r"/v2/models/(\w+)/(\w+)", path).groups()  # type: ignore[union-attr]
    assert (model, verb) in {("lookahead_bls", "generate"), ("lookahead_bls", "generate_stream")}
    assert set(body) <= {tensor.name for tensor in LOOKAHEAD_BLS_INPUTS} | {"text_input", "max_tokens", "stream"}


def blocks(language: str) -> list[str]:
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    return [
        block for page in pages for block in re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_of_a_page_compiles_and_its_imports_exist(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_yaml_block_of_a_page_has_settings_of_a_profile(block: str) -> None:
    assert set(yaml.safe_load(block)) <= {*ProfileConfig.model_fields, "base"}


def test_the_pages_have_commands() -> None:
    assert len(commands()) > 80
    assert blocks("python")
    assert blocks("yaml")


def test_each_tensor_beyond_tensorrt_llms_has_a_comment_that_the_documentation_shows() -> None:
    lines = (HOME / "pipeline/repository/extra_tensors.py").read_text(encoding="utf-8").splitlines()
    tensors = [(above, line) for above, line in pairwise(lines) if line.startswith(('    _input("', '    Tensor("'))]
    assert len(tensors) > 30
    assert [line for above, line in tensors if not above.startswith("    # ")] == []


def test_definition_lists_of_the_pages_are_rendered() -> None:
    assert any("\n:   " in page.read_text(encoding="utf-8") for page in PAGES)
    site = yaml.safe_load((HOME / "mkdocs.yml").read_text(encoding="utf-8"))
    assert "def_list" in site["markdown_extensions"]


def test_blocks_within_a_list_are_indented_as_the_site_requires() -> None:
    """The Markdown of the site does not nest a list or a table that is indented by fewer than four spaces."""
    wrong = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in re.findall(r"^ {1,3}(?:[*-] |\d+\. |\|).*", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert wrong == []


SOURCES = "".join(
    "".join(re.findall(r'"([^"\n]*)"', path.read_text(encoding="utf-8")))
    for path in sorted((HOME / "pipeline").rglob("*.py"))
)


@pytest.mark.parametrize(
    "message",
    [
        message
        for line in re.findall(
            r"^(`.+`)$", (HOME / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
        )
        for message in re.findall(r"`(.+?)`", line)
    ],
)
def test_a_message_of_the_troubleshooting_page_exists(message: str) -> None:
    """`...` of the page stands for a value: a field in braces, and little text around it."""
    words = (re.escape(part.strip()) for part in message.split("..."))
    assert re.search(".{0,60}".join(words), SOURCES)

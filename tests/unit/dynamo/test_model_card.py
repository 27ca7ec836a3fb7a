"""Model cards for Dynamo's front end: class names, and chat templates with tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers.utils.chat_template_utils import render_jinja_template

from pipeline.config.folders import Folders
from pipeline.config.resolution import resolve_config
from pipeline.dynamo.model_card import prompt_prefix, write_card
from pipeline.engine.artifact import Artifact
from pipeline.engine.build import build_engine

PLAIN = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}system: default\n{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(("template", "prefix"), [("<s> $A </s>", (1,)), ("$A </s>", ()), ("$A", ())])
def test_a_text_begins_with_the_tokens_of_the_tokenizers_template(
    template: str, prefix: tuple[int, ...], tmp_path: Path
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert prompt_prefix(tmp_path) == prefix


@pytest.fixture(scope="module")
def artifact(where: Folders) -> Artifact:
    settings = ("backend=torch", "device=cpu", "drafting.planner=fixed", "model.tool_call_parser=hermes")
    return build_engine(resolve_config("tiny-random-llama", "latency", settings), where).artifact


def with_template(artifact: Artifact, folder: Path, template: str) -> Artifact:
    """A copy of the engine's small files with this chat template and a config.json without a class name."""
    for part in (artifact.engine_dir, artifact.tokenizer_dir):
        (folder / part.name).mkdir(parents=True)
        for path in part.glob("*.json"):
            (folder / part.name / path.name).write_bytes(path.read_bytes())
    config = folder / artifact.engine_dir.name / "config.json"
    kept = {name: value for name, value in json.loads(config.read_text()).items() if name != "architectures"}
    config.write_text(json.dumps(kept))
    (folder / artifact.tokenizer_dir.name / "chat_template.jinja").write_text(template)
    return replace(artifact, folder=folder)


def rendered(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    texts, _ = render_jinja_template(conversations=[messages], tools=tools, chat_template=template)
    return str(texts[0])


def test_a_config_without_a_class_name_gets_it(artifact: Artifact, tmp_path: Path) -> None:
    card = write_card(with_template(artifact, tmp_path / "copy", PLAIN), tmp_path)
    assert json.loads((card / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_a_model_without_a_chat_template_gets_one_that_refuses(artifact: Artifact, tmp_path: Path) -> None:
    copy = with_template(artifact, tmp_path / "copy", PLAIN)
    (copy.tokenizer_dir / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="this model has no chat template"):
        rendered((write_card(copy, tmp_path) / "chat_template.jinja").read_text(), [{"role": "user", "content": "a"}])

    settings = copy.tokenizer_dir / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": [{"name": "default"}]}))
    assert not (write_card(copy, tmp_path) / "chat_template.jinja").exists()


def test_tools_reach_a_template_in_the_settings_of_the_tokenizer(artifact: Artifact, tmp_path: Path) -> None:
    copy = with_template(artifact, tmp_path / "copy", PLAIN)
    of_file = (write_card(copy, tmp_path) / "chat_template.jinja").read_text()
    (copy.tokenizer_dir / "chat_template.jinja").unlink()
    settings = copy.tokenizer_dir / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": PLAIN}))
    assert (write_card(copy, tmp_path) / "chat_template.jinja").read_text() == of_file


def test_the_files_of_the_card_of_a_read_only_engine_can_be_written(artifact: Artifact, tmp_path: Path) -> None:
    copy = with_template(artifact, tmp_path / "copy", PLAIN)
    (copy.tokenizer_dir / "chat_template.jinja").chmod(0o444)
    assert (write_card(copy, tmp_path) / "chat_template.jinja").stat().st_mode & 0o200


def test_a_lean_engine_names_its_class(artifact: Artifact) -> None:
    assert json.loads((artifact.engine_dir / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_tools_calls_and_results_reach_a_model_whose_template_has_none(artifact: Artifact, tmp_path: Path) -> None:
    card = write_card(with_template(artifact, tmp_path / "copy", PLAIN), tmp_path)
    template = (card / "chat_template.jinja").read_text()
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]},
        {"role": "tool", "content": "b"},
    ]
    text = rendered(template, messages, TOOLS)
    assert text.startswith("system: # Tools\n")
    assert json.dumps(TOOLS[0]) in text
    assert 'assistant: <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n' in text
    assert text.endswith("user: <tool_response>\nb\n</tool_response>\n")
    with_system = rendered(template, [{"role": "system", "content": "Be brief."}, *messages[:1]], TOOLS)
    assert with_system.startswith("system: Be brief.\n\n# Tools\n")
    assert with_system.count("system:") == 1


def test_a_conversation_without_tools_reads_as_before(artifact: Artifact, tmp_path: Path) -> None:
    card = write_card(with_template(artifact, tmp_path / "copy", PLAIN), tmp_path)
    template = (card / "chat_template.jinja").read_text()
    for messages in (
        [{"role": "user", "content": "a"}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    ):
        assert rendered(template, messages) == rendered(PLAIN, messages)


def test_a_template_with_tools_stays_as_it_is(artifact: Artifact, tmp_path: Path) -> None:
    card = write_card(with_template(artifact, tmp_path / "copy", "{{ tools }}"), tmp_path)
    assert (card / "chat_template.jinja").read_text() == "{{ tools }}"

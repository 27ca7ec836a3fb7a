"""The OpenAI API for models without a chat template, or whose template refuses a conversation."""

from __future__ import annotations

import shutil

import openai
import pytest

from pipeline.config.resolution import resolve_config
from pipeline.dynamo.fleet import openai_url, start_fleet
from pipeline.server.startup import prepare
from tests.integration.openai_requests import MESSAGES, chat
from tests.integration.servers import CPU, prepared

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
FIXED = "drafting.planner=fixed"  # a build measures no pass times
pytestmark = [pytest.mark.triton, pytest.mark.slow]
# Takes one message. Refuses two, and fails on three in Dynamo's engine, which lacks this method of Python's strings.
TEMPLATE = (
    "{% if messages|length == 2 %}{{ raise_exception('two messages') }}{% endif %}"
    "{% if messages|length == 3 %}{{ messages[0].content.swapcase() }}{% endif %}{{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("template", "sentences"),
    [(TEMPLATE, {2: "two messages", 3: "its log has the reason"}), (None, {1: "no chat template; send"})],
)
def test_a_conversation_that_the_chat_template_refuses_gets_the_reason(template, sentences, shared_where, tmp_path):
    prepared(shared_where, FIXED)  # creates the random checkpoint
    checkpoint = tmp_path / f"checkpoint-{len(sentences)}"
    shutil.copytree(next((shared_where.cache / "random").iterdir()), checkpoint)
    (checkpoint / "chat_template.jinja").unlink()
    if template is not None:
        (checkpoint / "chat_template.jinja").write_text(template)
    resolved = resolve_config(str(checkpoint), "latency", (*CPU, FIXED, "server.openai=true"), where=shared_where)
    fleet = start_fleet(prepare(resolved, shared_where), shared_where, tmp_path / "run")
    try:
        client = openai.OpenAI(base_url=openai_url(tmp_path / "run"), api_key="none", max_retries=0)
        asked = {"model": resolved.model.name, "max_tokens": 8, "temperature": 0}
        assert client.completions.create(prompt="the rat", **asked).usage.completion_tokens == 8
        if template is not None:
            assert chat(client, **asked).usage.completion_tokens == 8
        for number, sentence in sentences.items():
            for more in ({}, {"stream": True}, {"n": 2}, {"tools": TOOLS}):
                with pytest.raises(openai.BadRequestError, match=sentence):
                    chat(client, **asked, messages=MESSAGES * number, **more)
    finally:
        fleet.stop()

"""Requests to the OpenAI API of the tiny model."""

from __future__ import annotations

import openai

MODEL = "tiny-random-llama"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "the rat at the tea"}]


def chat(client: openai.OpenAI, **more: object) -> openai.types.chat.ChatCompletion:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(**asked)  # type: ignore[call-overload,no-any-return]


def text(client: openai.OpenAI, **more: object) -> str:
    return chat(client, **more).choices[0].message.content or ""

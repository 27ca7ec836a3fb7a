"""Outputs that are not valid UTF-8, or whose prompt is not. The detokenizer of Dynamo's front end (1.4.2) would panic
on some of them, and cut others."""

from __future__ import annotations

import openai
import pytest
from tokenizers import Tokenizer

from pipeline.config.folders import Folders
from tests.integration.openai_requests import MODEL
from tests.integration.servers import prepared

pytestmark = [pytest.mark.triton, pytest.mark.slow]
FACE = "\U0001f618"  # the UTF-8 bytes F0 9F 98 98


@pytest.fixture(scope="module")
def ids(shared_where: Folders) -> list[int]:
    tokenizer = Tokenizer.from_file(str(prepared(shared_where).artifact.tokenizer_dir / "tokenizer.json"))
    found: list[int] = tokenizer.encode(FACE, add_special_tokens=False).ids
    assert len(found) == 4
    return found


def forced_text(
    client: openai.OpenAI, prompt: list[int] | str, token: int, max_tokens: int, stream: bool, **more: object
) -> str:
    """Text of an output that repeats a token."""
    bias = {str(token): 100}
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logit_bias": bias} | more
    if stream:
        return "".join(chunk.choices[0].text for chunk in client.completions.create(stream=True, **asked))  # type: ignore[call-overload]
    text: str = client.completions.create(**asked).choices[0].text  # type: ignore[call-overload]
    return text


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_an_output_completes_a_character_of_the_prompt(
    client: openai.OpenAI, ids: list[int], stream: bool, max_tokens: int, more: dict[str, object]
) -> None:
    """max_tokens: number of the last bytes that the prompt lacks."""
    assert forced_text(client, ids[:-max_tokens], ids[-1], max_tokens, stream, **more) == FACE


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}])
@pytest.mark.parametrize("stream", [False, True])
def test_an_output_that_ends_within_a_character_has_a_replacement_character(
    client: openai.OpenAI, ids: list[int], stream: bool, more: dict[str, object]
) -> None:
    assert forced_text(client, "a", ids[0], 1, stream, **more) == "\ufffd"

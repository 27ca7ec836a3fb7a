"""Text of outputs after prompts that end with byte tokens, which are decoded in runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pipeline.dynamo.output_text import CardTokenizer, OutputText
from tests.unit.triton_models.test_text_stream import CODECS

CODEC = CODECS["byte fallback"]
TOKENIZER = CardTokenizer(CODEC.tokenizer.backend_tokenizer)
(THE,) = CODEC.tokenizer.convert_tokens_to_ids(["▁the"])


def byte_tokens(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def text_of(prompt: Sequence[int], output: Sequence[int]) -> str:
    text = OutputText(TOKENIZER, np.asarray(prompt, np.int32), np.zeros(0, np.int32), ())
    return "".join([*text.push(output), *text.push([], is_last=True)])


@pytest.mark.parametrize("prompt", ["本", "本語中文한국어"])
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (byte_tokens("국"), "국"),
        ([*byte_tokens("국"), THE], "국 the"),
        ([THE], " the"),
        (byte_tokens("국")[:2], "\ufffd\ufffd"),
        ([3 + 0xFF, THE], "\ufffd the"),
    ],
)
def test_a_run_of_byte_tokens_goes_on_in_the_output(prompt: str, output: list[int], expected: str) -> None:
    assert text_of([THE, *byte_tokens(prompt)], output) == expected


@pytest.mark.parametrize("num_missing", [1, 2])
def test_an_output_completes_the_last_character_of_a_run(num_missing: int) -> None:
    ids = byte_tokens("本語中文한")
    place = len(ids) - num_missing
    assert text_of([THE, *ids[:place]], [*ids[place:], THE]) == "한 the"

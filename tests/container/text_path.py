"""What the models of a server that only handle text do with tokenizer folders: python -m tests.container.text_path.

Reads a folder per line, and prints a JSON object for each. The test runs it under two releases of transformers and
compares.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.resolution import resolve_config
from pipeline.triton_models.bls import Bls
from pipeline.triton_models.python_backend import hide_torch
from pipeline.triton_models.tensors import Array, Tensors
from pipeline.triton_models.text_codec import TextCodec, load_codec
from pipeline.triton_models.text_tensors import postprocess, preprocess

TEXTS = (
    "the cat sat on the mat",
    "größe 日本語 🎉🤷🏽‍♀️ \u0928\u093f",
    "twice  two\n\nlines\r\n\ttab ",
    "def f(x):\n    return x  # 1234567890",
    " leading, and <|im_start|> a special token's name <s>",
    "",
)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "größe 日本語?"}]
OUTPUT = "An answer: größe 日本語 🎉\n  two  spaces"


class Recital:
    """A target that generates given tokens, whatever it is asked."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.prompts: list[list[int]] = []

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        self.prompts.append(tensors["input_ids"][0].tolist())
        wanted = int(tensors["request_output_len"].item())
        done = len(self.prompts[-1]) - len(self.prompts[0])
        ids = self.ids[done : done + wanted]
        return {
            "output_ids": np.asarray([[ids]], np.int32),
            "sequence_length": np.asarray([[len(ids)]], np.int32),
            "finish_reason": np.asarray([["length"]], np.object_),
        }


def main() -> None:
    hide_torch()
    for line in sys.stdin:
        with redirect_stdout(sys.stderr):
            found = {"transformers": version("transformers"), "results": results(load_codec(Path(line.rstrip("\n"))))}
        print(json.dumps(found), flush=True)


def results(codec: TextCodec) -> dict[str, Any]:
    template = codec.tokenizer.chat_template
    return {
        "ids": [codec.encode(text).tolist() for text in TEXTS],
        "plain_ids": [codec.encode(text, add_special_tokens=False).tolist() for text in TEXTS],
        "texts": [codec.decode(codec.encode(text, add_special_tokens=False).tolist()) for text in TEXTS],
        "special": sorted(codec.special_ids),
        "ends": [codec.end_id, codec.pad_id, sorted(codec.end_ids)],
        "chat": codec.chat_text(MESSAGES) if template else None,
        "preprocessing": {name: value.tolist() for name, value in preprocessed(codec).items()},
        "postprocessing": [text.decode() for text in postprocessed(codec)],
        "bls": [asyncio.run(answers(codec, stream)) for stream in (False, True)],
    }


def preprocessed(codec: TextCodec) -> dict[str, Array]:
    tensors = {
        "QUERY": text_tensor(TEXTS[1]),
        "REQUEST_OUTPUT_LEN": np.asarray([[8]], np.int32),
        "STOP_WORDS_DICT": np.asarray([[b"\n\n", "語".encode()]], np.object_),
        "BAD_WORDS_DICT": np.asarray([[b"mat"]], np.object_),
    }
    return {name: value for name, value in preprocess(codec, tensors, True).items() if name != "EMBEDDING_BIAS"}


def postprocessed(codec: TextCodec) -> list[bytes]:
    ids = [codec.encode(text, add_special_tokens=False).tolist() for text in TEXTS]
    width = max(map(len, ids))
    tokens = np.asarray([[row + [0] * (width - len(row)) for row in ids]], np.int32)
    texts: list[bytes] = postprocess(
        codec, {"TOKENS_BATCH": tokens, "SEQUENCE_LENGTH": np.asarray([[len(row) for row in ids]])}, True
    )["OUTPUT"].tolist()
    return texts


async def answers(codec: TextCodec, stream: bool) -> dict[str, Any]:
    """The BLS model's text path: a conversation in, tokens from a target, text out, up to a stop word."""
    target = Recital(codec.encode(OUTPUT, add_special_tokens=False).tolist())
    resolved = resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu"))
    bls = Bls(resolved, codec, [target])
    tensors = {
        "messages" if codec.tokenizer.chat_template else "text_input": text_tensor(
            json.dumps(MESSAGES) if codec.tokenizer.chat_template else TEXTS[1]
        ),
        "max_tokens": np.asarray([[len(target.ids)]], np.int32),
        "stop_words": np.asarray([[b"two  sp"]], np.object_),
        "strategy": text_tensor("none"),
        "stream": np.asarray([[stream]]),
    }
    pieces = [answer.tensors["text_output"][0].decode() async for answer in bls.answer(tensors)]
    return {"prompt": target.prompts[0], "text": "".join(pieces)}


def text_tensor(text: str) -> Array:
    return np.asarray([[text.encode()]], np.object_)


if __name__ == "__main__":
    main()

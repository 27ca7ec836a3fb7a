"""TensorRT-LLM's own Triton clients: the two client libraries, used as NVIDIA's scripts use them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype

PROMPT = "the rat at the tea; the rat at the tea; the rat"


NUM_TOKENS = 24


ONCE = ("ensemble", "tensorrt_llm_bls")


class Stock:
    """One of the two client libraries, used as NVIDIA's scripts use it."""

    def __init__(self, library: Any, url: str, **options: float) -> None:
        self.library = library
        self.client = library.InferenceServerClient(url, **options)

    def inputs(self, tensors: dict[str, np.ndarray]) -> list[Any]:
        inputs = []
        for name, array in tensors.items():
            tensor = self.library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        return inputs

    def infer(self, model: str, tensors: dict[str, np.ndarray], outputs: list[str] | None = None) -> Any:
        wanted = None if outputs is None else [self.library.InferRequestedOutput(name) for name in outputs]
        return self.client.infer(model, self.inputs(tensors), outputs=wanted, request_id="1")


def words(*texts: str) -> np.ndarray:
    return np.asarray([list(texts)], np.object_)


def one(value: object, dtype: type = np.int32) -> np.ndarray:
    return np.asarray([[value]], dtype)


def preprocessed(stock: Stock, text: str = PROMPT) -> dict[str, np.ndarray]:
    """The first call of end_to_end_test.py, as the tensors of its second."""
    result = stock.infer(
        "preprocessing",
        {
            "QUERY": words(text),
            "BAD_WORDS_DICT": words(""),
            "STOP_WORDS_DICT": words(""),
            "REQUEST_OUTPUT_LEN": one(NUM_TOKENS),
        },
    )
    return {
        "input_ids": result.as_numpy("INPUT_ID"),
        "decoder_input_ids": result.as_numpy("DECODER_INPUT_ID"),
        "input_lengths": result.as_numpy("REQUEST_INPUT_LEN"),
        "request_output_len": result.as_numpy("REQUEST_OUTPUT_LEN"),
        "end_id": result.as_numpy("OUT_END_ID"),
        "pad_id": result.as_numpy("OUT_PAD_ID"),
    }


def text_inputs(library: Any, **more: np.ndarray) -> list[Any]:
    inputs = []
    for name, array in ({"text_input": words(PROMPT), "max_tokens": one(NUM_TOKENS)} | more).items():
        tensor = library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs

"""Several outputs of one prompt (`num_return_sequences`, OpenAI's `n`), computed as separate requests.

Output i equals the output of a request with the seed `seed + i`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from pipeline.triton_models.tensors import Array, Tensors, flag, int_tensor, integer

NUM_SEQUENCES = "num_return_sequences"
MAX_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class TextResponse:
    """One response. tensors: output tensors. last: whether it is the final response."""

    tensors: dict[str, Array]
    last: bool


def num_sequences(tensors: Tensors) -> int:
    """Number of outputs that a request asks for, 1 by default. Raises RequestError unless in 1 .. `MAX_SEQUENCES`."""
    return integer(tensors, NUM_SEQUENCES, 1, MAX_SEQUENCES) or 1


def sequence_of(tensors: Tensors, index: int) -> Tensors:
    """Tensors of the separate request for output `index`."""
    alone = {name: value for name, value in tensors.items() if name != NUM_SEQUENCES}
    if index:
        seed = (integer(tensors, "seed") or 0) + index
        alone["seed"] = np.asarray([[seed % (1 << 64)]], np.uint64)
    return alone


async def all_responses(
    answer: Callable[[Tensors], AsyncGenerator[TextResponse, None]], tensors: Tensors
) -> AsyncGenerator[TextResponse, None]:
    """Yield the responses of all outputs of a request, with TensorRT-LLM's indices of row (always 0) and output. `last`
    marks the final response.

    In a stream the other outputs begin after the first response of output 0, so that they reuse its prompt's KV cache.
    Closing the generator early cancels all outputs. An error of one output cancels the others and is raised."""
    count = num_sequences(tensors)
    queue: asyncio.Queue[tuple[int, TextResponse | Exception]] = asyncio.Queue()

    async def run(index: int) -> None:
        try:
            async with aclosing(answer(sequence_of(tensors, index))) as answers:
                async for item in answers:
                    queue.put_nowait((index, item))
        except Exception as error:  # raised again by the reader of the queue
            queue.put_nowait((index, error))

    num_first = 1 if flag(tensors, "stream") else count
    tasks = [asyncio.create_task(run(index)) for index in range(num_first)]
    try:
        num_ended = 0
        while num_ended < count:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            tasks += [asyncio.create_task(run(other)) for other in range(len(tasks), count)]
            num_ended += item.last
            indices = {"batch_index": int_tensor(0), "sequence_index": int_tensor(index)}
            yield TextResponse(item.tensors | indices, last=num_ended == count)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # the tasks are ending; a second cancellation would interrupt that
            await asyncio.wait(tasks)
            raise

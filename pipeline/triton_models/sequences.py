"""Several outputs of one prompt (`num_return_sequences`, OpenAI's n): separate requests with different noise.

Output i is that of a request with the seed `seed + i`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import RequestError
from pipeline.triton_models.tensors import Array, Tensors, flag, int_tensor, integer

NUM_SEQUENCES = "num_return_sequences"
MAX_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """One response. tensors: outputs. last: nothing follows."""

    tensors: dict[str, Array]
    last: bool


def num_sequences(tensors: Tensors) -> int:
    """Number of outputs. Raises RequestError unless it is 1 .. `MAX_SEQUENCES`."""
    count = integer(tensors, NUM_SEQUENCES)
    if count is not None and not 1 <= count <= MAX_SEQUENCES:
        raise RequestError(f"{NUM_SEQUENCES} is {count}; it must be in 1 .. {MAX_SEQUENCES}")
    return 1 if count is None else count


def sequence_seed(seed: int, index: int) -> int:
    return (seed + index) % (1 << 64)


def sequence_of(tensors: Tensors, index: int) -> Tensors:
    alone = {name: value for name, value in tensors.items() if name != NUM_SEQUENCES}
    if index:
        seed = sequence_seed(integer(tensors, "seed") or 0, index)
        alone["seed"] = np.asarray([[seed]], np.uint64)
    return alone


async def answer_all(
    answer: Callable[[Tensors], AsyncGenerator[TextAnswer, None]], tensors: Tensors
) -> AsyncGenerator[TextAnswer, None]:
    """The answers to all outputs of a request, each marked with its `sequence_index`; the last one of all is `last`.

    In a stream the others begin when the first has answered, so that they find the prompt in the KV cache. Leaving the
    iteration early cancels all of them; so does an error of one, which is raised."""
    count = num_sequences(tensors)
    queue: asyncio.Queue[tuple[int, TextAnswer | Exception]] = asyncio.Queue()

    async def run(index: int) -> None:
        try:
            async with aclosing(answer(sequence_of(tensors, index))) as answers:
                async for item in answers:
                    queue.put_nowait((index, item))
        except Exception as error:  # raised where the answers are read
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
            item.tensors["sequence_index"] = int_tensor(index)
            yield replace(item, last=num_ended == count)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

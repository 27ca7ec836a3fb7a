"""Chunks of fixed size hold the same output, and their sizes do not depend on steps."""

from __future__ import annotations

import asyncio
from itertools import count, islice

from hypothesis import given
from hypothesis import strategies as st

from pipeline.triton_models.partial_output import PartialOutput
from pipeline.triton_models.side_channel import CHUNK_CHARS, CHUNK_TOKENS, in_fixed_chunks

TEXT = "".join(chr(first + place) for place in range(540) for first in (ord("A"), 0x4E00))
SIZES = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), max_size=12)


def parts_of(sizes: list[tuple[int, int]]) -> list[PartialOutput]:
    """Pieces of these numbers of characters and tokens, all different."""
    characters, tokens = iter(TEXT), count()
    return [PartialOutput("".join(islice(characters, size)), list(islice(tokens, num_ids))) for size, num_ids in sizes]


def chunks_of(parts: list[PartialOutput], tokens_only: bool) -> list[PartialOutput]:
    async def source():
        for part in parts:
            yield part

    async def collect() -> list[PartialOutput]:
        return [chunk async for chunk in in_fixed_chunks(source(), tokens_only)]

    return asyncio.run(collect())


@given(SIZES, st.booleans())
def test_chunks_are_the_output_in_pieces_of_one_size(sizes, tokens_only):
    parts = parts_of(sizes)
    chunks = chunks_of(parts, tokens_only)

    assert "".join(chunk.text for chunk in chunks) == "".join(part.text for part in parts)
    assert [token for c in chunks for token in c.token_ids] == [token for p in parts for token in p.token_ids]
    lengths = [len(chunk.token_ids) if tokens_only else len(chunk.text) for chunk in chunks]
    assert set(lengths[:-1]) <= {CHUNK_TOKENS if tokens_only else CHUNK_CHARS}


@given(st.text("ab", min_size=1, max_size=300), st.lists(st.integers(1, 40), max_size=20), st.lists(st.integers(1, 40)))
def test_the_same_text_makes_the_same_chunks_however_its_steps_fell(text, first, second):
    def cut(sizes: list[int]) -> list[PartialOutput]:
        parts, start = [], 0
        for size in sizes:
            parts.append(PartialOutput(text[start : start + size], []))
            start += size
        return [*parts, PartialOutput(text[start:], [])]

    assert chunks_of(cut(first), False) == chunks_of(cut(second), False)

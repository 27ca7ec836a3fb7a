"""Server-sent events in the chunks of a response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import pydantic_core

from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.errors import ERROR_MARKS

# Start of an event with JSON data.
DATA = b"data: "
# Longest event that is buffered until it is complete. Longer events are forwarded unparsed.
_LONGEST_EVENT_BYTES = 1 << 20


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events as they arrive. An item is one or more complete events with their blank lines; an event
    with an error is an item of its own."""
    held = b""
    async for chunk in chunks:
        held += chunk
        end = held.rfind(b"\n\n") + 2
        if end < 2:
            if len(held) > _LONGEST_EVENT_BYTES:
                yield held
                held = b""
            continue
        whole, held = held[:end], held[end:]
        if any(mark in whole for mark in ERROR_MARKS):
            for event in events_of(whole):
                yield event
        else:
            yield whole
    if held:
        yield held


def chunk_of(event: bytes) -> Json | None:
    """The JSON object in an event; None if it has none."""
    return pydantic_core.from_json(event.removeprefix(DATA)) if event.startswith(DATA + b"{") else None


def event_of(chunk: Json) -> bytes:
    return DATA + write_json(chunk) + b"\n\n"


def events_of(whole: bytes) -> list[bytes]:
    """Split complete events, each with the blank line after it. A part of a long event is one item."""
    if not whole.endswith(b"\n\n"):
        return [whole]
    return [event + b"\n\n" for event in whole.removesuffix(b"\n\n").split(b"\n\n")]

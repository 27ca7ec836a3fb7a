"""Server-sent events in the pieces of a response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import pydantic_core

from pipeline.gateway.bodies import Json, write_json

# Start of an event with JSON data, and the last event of the OpenAI API.
DATA, END = b"data: ", b"data: [DONE]\n\n"
# Clients that read lines of text, such as `iter_lines` of httpx, end a line at these characters, too.
_LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}


async def events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield each server-sent event with its blank line as it arrives, and the bytes after the last one."""
    held = bytearray()
    async for piece in pieces:
        start = max(0, len(held) - 1)
        held += piece
        while (end := held.find(b"\n\n", start) + 2) > 1:
            yield bytes(held[:end])
            del held[:end]
            start = 0
    if held:
        yield bytes(held)


def parsed(event: bytes) -> Json | bytes:
    """The JSON object in an event; the event itself if it has none."""
    return pydantic_core.from_json(event.removeprefix(DATA)) if event.startswith(DATA + b"{") else event


def event_of(chunk: Json) -> bytes:
    """The server-sent event with a chunk."""
    return DATA + as_one_line(write_json(chunk)) + b"\n\n"


def as_one_line(data: bytes) -> bytes:
    """JSON that holds none of the characters in _LINE_ENDS."""
    for end, escaped in _LINE_ENDS.items():
        data = data.replace(end, escaped)
    return data

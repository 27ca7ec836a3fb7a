"""Responses that do not show how drafts fared (`server.side_channel_safe`).

Sizes of streamed responses show how many tokens each step accepted, and with that what others have drafted (arXiv
2411.01076). So responses are cut to one size, and figures of drafts are left out. What remains is the time over whole
responses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from pipeline.errors import RequestError
from pipeline.triton_models.piece import Piece
from pipeline.triton_models.text_request import TextRequest

# About as many tokens as characters of text make: several steps in each response.
CHUNK_TOKENS = 16
CHUNK_CHARS = 64
_SHOWN = ("strategy", "model", "finish_reason", "prompt_ids", "output_ids")


def require_no_figures(request: TextRequest) -> None:
    """Raise RequestError if a request asks for figures about its drafts."""
    if request.stream and request.wanted.of_output:
        raise RequestError(
            "log probabilities or logits of a stream were asked for; this server (server.side_channel_safe) returns "
            "them with stream false only"
        )
    if request.return_perf_metrics:
        raise RequestError(
            "return_perf_metrics was sent; this server gives out no figures of drafts (server.side_channel_safe)"
        )


def without_figures(statistics: Mapping[str, object]) -> dict[str, object]:
    """A request's statistics without those about drafts."""
    return {name: statistics[name] for name in _SHOWN if name in statistics}


async def in_fixed_chunks(pieces: AsyncGenerator[Piece, None], tokens_only: bool) -> AsyncGenerator[Piece, None]:
    """The same output in pieces of CHUNK_CHARS characters, or of CHUNK_TOKENS tokens, and a shorter one at the end."""
    text, ids = "", list[int]()
    async with aclosing(pieces):
        async for piece in pieces:
            text += piece.text
            ids += piece.token_ids
            while len(ids) >= CHUNK_TOKENS if tokens_only else len(text) >= CHUNK_CHARS:
                size = CHUNK_TOKENS if tokens_only else len(ids)
                yield Piece(text[:CHUNK_CHARS], ids[:size])
                text, ids = text[CHUNK_CHARS:], ids[size:]
    if text or ids:
        yield Piece(text, ids)

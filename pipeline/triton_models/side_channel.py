"""Responses that do not reveal the acceptance of drafts (`server.side_channel_safe`).

The sizes of streamed responses reveal how many tokens each step accepted, and from that the content of other clients'
drafts (arXiv 2411.01076). So responses get a fixed size, and draft figures are left out. The times of whole responses
still leak some information.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from pipeline.errors import RequestError
from pipeline.triton_models.partial_output import PartialOutput
from pipeline.triton_models.text_request import TextRequest

# Sizes of a response, in tokens or in characters of text. They are about equal, and cover several steps.
CHUNK_TOKENS = 16
CHUNK_CHARS = 64
_SHOWN = ("strategy", "model", "finish_reason", "prompt_ids", "output_ids")


def require_no_figures(request: TextRequest) -> None:
    """Raise RequestError if a request asks for outputs that reveal the acceptance of drafts."""
    if request.stream and (request.wanted.of_output or request.wanted.of_prompt):
        raise RequestError(
            "this server returns log probabilities and logits only in whole responses of generate and infer, not in "
            "streams or by the OpenAI API (server.side_channel_safe)"
        )
    if request.return_perf_metrics:
        raise RequestError(
            "return_perf_metrics was sent; this server returns no draft statistics (server.side_channel_safe)"
        )


def without_figures(statistics: Mapping[str, object]) -> dict[str, object]:
    """A request's statistics without those that reveal the acceptance of drafts."""
    return {name: statistics[name] for name in _SHOWN if name in statistics}


async def in_fixed_chunks(
    parts: AsyncGenerator[PartialOutput, None], tokens_only: bool
) -> AsyncGenerator[PartialOutput, None]:
    """Yield the same output in parts of CHUNK_CHARS characters, or of CHUNK_TOKENS tokens; the last may be shorter."""
    text, ids = "", list[int]()
    async with aclosing(parts):
        async for part in parts:
            text += part.text
            ids += part.token_ids
            while len(ids) >= CHUNK_TOKENS if tokens_only else len(text) >= CHUNK_CHARS:
                size = CHUNK_TOKENS if tokens_only else len(ids)
                yield PartialOutput(text[:CHUNK_CHARS], ids[:size])
                text, ids = text[CHUNK_CHARS:], ids[size:]
    if text or ids:
        yield PartialOutput(text, ids)

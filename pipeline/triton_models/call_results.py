"""Interprets a response of the target model: draft counts, number of passes, end of the output.

TensorRT-LLM returns tokens and counts only, so EOS is inferred from the number of tokens. A call with drafts returns
the accepted part of the chain and one more token. A call without drafts returns as many tokens as requested. Fewer
tokens mean that an end token or a stop word came first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import outcome_of_tokens
from pipeline.decoding.tree import DraftTree
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError
from pipeline.triton_models.tensors import Tensors, integer, text, token_ids


class DraftCounts(NamedTuple):
    """Draft tokens in the target's count, which includes drafts of its own. steps: passes with drafts; the highest
    possible number if only the total of several passes is known."""

    steps: int
    drafted: int
    accepted: int


def counts_of(response: Tensors) -> DraftCounts | None:
    """Draft counts of a response; None if it has none."""
    drafted = integer(response, "total_draft_tokens")
    if drafted is None:
        return None
    accepted = integer(response, "total_accepted_draft_tokens") or 0
    num_steps = num_steps_of(token_ids(response, "output_ids").tolist(), response, accepted)
    return DraftCounts(min(drafted, num_steps), drafted, accepted)


def total(before: DraftCounts | None, counts: DraftCounts | None) -> DraftCounts | None:
    """Sum of two counts; None counts as zero, and the sum of two None is None."""
    if before is None or counts is None:
        return counts if before is None else before
    return DraftCounts(*(sum(both) for both in zip(before, counts, strict=True)))


def num_steps_of(ids: Sequence[int], response: Tensors, num_accepted: int) -> int:
    """Number of passes of a call without a tree: the response's figure, else the tokens minus the engine's own accepted
    drafts, at least 1."""
    return integer(response, "num_steps") or max(1, len(ids) - num_accepted)


def ended_by_end_token(traits: TargetTraits, tree: DraftTree, ids: Sequence[int], response: Tensors) -> bool:
    """Whether the response to a call with the drafts `tree` shows that the target generated an end token. ids: tokens
    of the response. Raises BusyError if the target cancelled the request."""
    if traits.extended:
        reason = text(response, "finish_reason")
        if reason == FinishReason.CANCELLED.value:
            raise BusyError("the target model ended the request; the server is shutting down")
        return reason == FinishReason.END_TOKEN.value
    if not len(tree):
        return False
    if not ids:
        return True
    if len(outcome_of_tokens(tree, [*ids, -1]).nodes) < len(ids):
        return False
    # The response is a part of the chain. Either an end token followed it, or the engine verified only that part, and
    # the target's own token equals the chain's next one. The draft count separates the two, except with chunked
    # context, where the engine may drop drafts without counting them. If in doubt, continue: after an end the next
    # call returns nothing.
    limits, drafted = traits.limits, integer(response, "total_draft_tokens")
    assert limits is not None, "only TensorRT-LLM's responses have no finish_reason"
    return not limits.chunked_context and (drafted is None or drafted >= len(tree))


def has_stop_word(context: Sequence[int], num_new: int, stop_sequences: Sequence[Sequence[int]]) -> bool:
    """Whether a stop sequence ends within the last `num_new` tokens of the context. As in TensorRT-LLM, it may begin in
    the prompt, and accepted tokens of the same step may follow it."""
    length = len(context)
    return any(
        tuple(context[end - len(stop) : end]) == tuple(stop)
        for stop in stop_sequences
        for end in range(max(length - num_new + 1, len(stop)), length + 1)
    )

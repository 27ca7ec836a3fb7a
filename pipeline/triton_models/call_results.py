"""Interprets a response of the target: counts of drafts, number of passes, whether the output has ended.

TensorRT-LLM returns tokens and counts only. EOS is inferred from a short reply: a step returns the accepted part of the
chain and one more token, a call without drafts as many tokens as requested, unless an end token or a stop word came
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import outcome_of_tokens
from pipeline.decoding.tree import DraftTree
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError
from pipeline.triton_models.tensors import Tensors, integer, text


class DraftCounts(NamedTuple):
    """Draft tokens as the target counts them, its own drafts included."""

    drafted: int
    accepted: int


def counts_of(response: Tensors) -> DraftCounts | None:
    """None if the target sent no counts."""
    drafted = integer(response, "total_draft_tokens")
    return None if drafted is None else DraftCounts(drafted, integer(response, "total_accepted_draft_tokens") or 0)


def total(before: DraftCounts | None, counts: DraftCounts | None) -> DraftCounts | None:
    """The sum of the counts of earlier calls and of one more."""
    if before is None or counts is None:
        return counts if before is None else before
    return DraftCounts(before.drafted + counts.drafted, before.accepted + counts.accepted)


def num_steps_of(ids: Sequence[int], response: Tensors) -> int:
    """Passes for the tokens of a call without a tree: one for each token that was not an accepted draft of the engine's
    own."""
    counts = counts_of(response) or DraftCounts(0, 0)
    return integer(response, "num_steps") or max(1, len(ids) - counts.accepted)


def ended_by_end_token(traits: TargetTraits, tree: DraftTree, ids: Sequence[int], response: Tensors) -> bool:
    """Whether the response of a call with `tree` shows that an end token came. ids: its tokens. Raises BusyError if
    the target ended the request by itself."""
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
    # The reply is only a part of the chain. Either an end token followed it, or the engine verified only a part, as its
    # count shows (with chunked context it may drop drafts silently), and the target's own token equals the chain's. If
    # in doubt, continue: the next call then returns nothing if the output has ended.
    limits, drafted = traits.limits, integer(response, "total_draft_tokens")
    assert limits is not None, "only TensorRT-LLM leaves the reason out"
    return not limits.chunked_context and (drafted is None or drafted >= len(tree))


def has_stop_word(context: Sequence[int], num_new: int, stop_sequences: Sequence[Sequence[int]]) -> bool:
    """Whether a stop sequence ends within the last `num_new` tokens of the context. Like TensorRT-LLM, this counts a
    sequence that begins in the prompt, and one followed by tokens that the same step accepted."""
    length = len(context)
    return any(
        tuple(context[end - len(stop) : end]) == tuple(stop)
        for stop in stop_sequences
        for end in range(max(length - num_new + 1, len(stop)), length + 1)
    )

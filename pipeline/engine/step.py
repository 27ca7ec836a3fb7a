"""Work on one sequence during and after a pass: compute masks, then choose, accept, advance, commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pipeline.decoding.accept import accept
from pipeline.decoding.grammar.masks import TreeMasks
from pipeline.decoding.log_probs import PromptLogits, token_log_prob
from pipeline.decoding.sampling import choose_token
from pipeline.decoding.session import StepOutcome
from pipeline.decoding.tree import ROOT, DraftTree
from pipeline.engine.contract import Engine, NodeLogits, VerifyItem
from pipeline.engine.running_request import RunningRequest
from pipeline.engine.submission import StepEvent

# Returns the target's token after a node, given the tokens emitted before it in this step.
Choose = Callable[[int, Sequence[int]], int]


# Choice after the end of the output, where the grammar may permit no token. It ends the walk over the tree, and the
# session drops it.
NO_TOKEN = -1


def start_masks(running: RunningRequest, item: VerifyItem) -> TreeMasks | None:
    """Start to compute the masks of the tree's nodes in a thread. None without a grammar, and if the item leaves tokens
    pending, because then no token is chosen."""
    matcher = running.session.matcher
    if matcher is None or item.num_pending != running.sequence.num_pending:
        return None
    return TreeMasks(matcher, item.tree)


def advance(
    engine: Engine, running: RunningRequest, tree: DraftTree, logits: NodeLogits, masks: TreeMasks | None
) -> StepEvent:
    """Process the result of a pass over a tree. Returns the event for the requester. Raises RequestError if the grammar
    permits no continuation."""
    session, wanted = running.session, running.submission.wanted
    accepted = accept(tree, _chooser(running, logits, masks))
    top_k = partial(logits.top_k, running.num_top) if running.num_top else None
    emitted = session.take(tree, StepOutcome(accepted.nodes, accepted.token_ids, logits.choices, top_k))
    log_probs = []
    if wanted.of_output:
        log_probs = [
            token_log_prob(logits.row(node + 1), token, wanted.num_top, wanted.generation_logits)
            for node, token in zip((ROOT, *accepted.nodes), emitted, strict=False)
            if token not in running.request.end_ids
        ]
    # Accepted nodes after the end of the output are left out: a window may reach beyond max_seq_len.
    nodes = accepted.nodes[: len(emitted) - 1]
    if running.submission.on_row is not None:
        first = len(session.context) - len(emitted)
        for number, node in enumerate((-1, *nodes)):
            running.submission.on_row(first + number, logits.row(node + 1))
    certain = session.advance_certain()
    engine.commit(running.sequence, nodes, emitted + certain)
    if masks is not None:
        session.statistics.mask_seconds += masks.seconds
    prompt, running.prompt = running.prompt if running.wants_prompt_rows else None, PromptLogits([], [])
    running.num_steps += 1
    return StepEvent(
        running.request.request_id,
        emitted + certain,
        session.statistics,
        log_probs=log_probs,
        prompt=prompt,
    )


def _chooser(running: RunningRequest, logits: NodeLogits, masks: TreeMasks | None) -> Choose:
    request, session, choices = running.request, running.session, logits.choices

    def choose(node: int, emitted: Sequence[int]) -> int:
        greedy = int(choices[node + 1])
        mask = None
        if masks is not None:
            if session.end_after(emitted) is not None:
                return NO_TOKEN
            mask = masks.at(node)
            if mask.only is not None:
                return mask.only
        # If the mask permits the best token, that is also the best permitted one.
        if not running.needs_logits and (mask is None or mask.permits(greedy)):
            return greedy
        return choose_token(request, logits.row(node + 1), session.context_with(emitted), mask)

    return choose

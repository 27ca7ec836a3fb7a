"""Validation of a request before it enters the scheduler's queue, and the start of its guide's compilation."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from pipeline.decoding.log_probs import check_logit_options
from pipeline.decoding.sampling_checks import check_sampling
from pipeline.decoding.strategy import check_strategy
from pipeline.decoding.tree import IntArray, check_tree
from pipeline.engine.contract import EngineLimits
from pipeline.errors import RequestError

if TYPE_CHECKING:  # clients import this module, and sessions need compiled loops
    from pipeline.decoding.grammar.compiler import Compiler
    from pipeline.decoding.grammar.matcher import Matcher
    from pipeline.engine.submission import Submission


def check_submission(submission: Submission, limits: EngineLimits) -> None:
    """Raise RequestError, with the value found and the permitted ones, if no engine with these limits can serve it."""
    request = submission.request
    check_strategy(submission.strategy)
    if len(request.prompt_ids) == 0:
        raise RequestError("the prompt is empty; send at least one token")
    num_resumed = request.num_resumed_tokens
    if not 0 <= num_resumed < len(request.prompt_ids):
        raise RequestError(
            f"num_resumed_tokens is {num_resumed}; it counts the last tokens of the prompt and must be in "
            f"0 .. {len(request.prompt_ids) - 1}"
        )
    if request.max_new_tokens - num_resumed < 1:
        raise RequestError(
            f"the number of tokens to generate is {request.max_new_tokens - num_resumed}; it must be at least 1"
        )
    if not 0 <= request.min_new_tokens <= request.max_new_tokens:
        raise RequestError(
            f"min_tokens is {request.min_new_tokens}; it must be in 0 .. {request.max_new_tokens} (max_tokens)"
        )
    if len(request.prompt_ids) >= limits.max_seq_len:
        raise RequestError(
            f"the prompt has {len(request.prompt_ids)} tokens; prompt and output may have "
            f"{limits.max_seq_len}; shorten it or build with a larger engine.max_seq_len"
        )
    if len(submission.supplied) > limits.max_draft_tokens:
        raise RequestError(
            f"{len(submission.supplied)} draft tokens were sent; the engine takes {limits.max_draft_tokens} per step"
        )
    try:
        check_tree(submission.supplied, limits.vocab_size)
    except ValueError as error:
        raise RequestError(str(error)) from error
    require_tokens(request.prompt_ids, limits.vocab_size, "the prompt")
    check_sampling(request.sampling, limits.vocab_size)
    check_logit_options(submission.wanted)


def matcher_of(submission: Submission, compiler: Compiler | None) -> Future[Matcher] | None:
    """The matcher of the request's guide, compiled in a worker thread; None without a guide. Raises RequestError
    without a compiler."""
    request = submission.request
    if request.guide is None:
        return None
    if compiler is None:
        raise RequestError("this engine has no tokenizer, so it cannot apply a grammar; leave the guide out")
    output_ids = request.prompt_ids[len(request.prompt_ids) - request.num_resumed_tokens :].tolist()
    return compiler.matcher(request.guide, request.end_ids, output_ids)


def require_tokens(token_ids: IntArray, vocab_size: int, name: str) -> None:
    """Raise RequestError if one of the tokens [len] is outside the target's vocabulary. name: of the tokens in the
    message."""
    wrong = np.flatnonzero((token_ids < 0) | (token_ids >= vocab_size))
    if len(wrong):
        index = int(wrong[0])
        raise RequestError(
            f"{name} holds token {int(token_ids[index])} at position {index}, which lies outside the vocabulary "
            f"0 .. {vocab_size - 1}"
        )

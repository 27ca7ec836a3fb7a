"""Emulates a TensorRT-LLM engine with the torch engine, to test callers against the contract without a GPU. It accepts,
cuts and refuses inputs as the C++ backend of release line 1.2 does.

    trie        an engine built for external drafts: one chain per request, one verification step, no streaming with it
    lookahead   an engine built for lookahead decoding: makes its own drafts, decodes greedily, ignores sampling tensors
    none        an engine without speculation

It also refuses requests for which TensorRT-LLM's behaviour is undefined: no room for output, a prompt shorter than the
n-gram, W, N and G larger than the instance's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.config.schema import LookaheadConfig, ResolvedConfig, SuppliedDraftConfig, WindowDraftConfig
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, IntArray, chain
from pipeline.engine.submission import Submission
from pipeline.engine.traits import REQUIRED_OUTPUTS, Mode, RuntimeLimits
from pipeline.errors import RepositoryError, RequestError
from pipeline.repository.extra_tensors import TENSORRT_LLM_INPUTS
from pipeline.triton_models.engine_calls import call_of, generation_request, lookahead_config, refuse_unsupported
from pipeline.triton_models.engine_responses import EngineCall
from pipeline.triton_models.guide_tensors import GUIDE_TYPE
from pipeline.triton_models.tensors import Tensors, flag, integer, number, require_one_row, token_ids


@dataclass(frozen=True, slots=True)
class StrictEngine:
    """The emulated engine. lookahead: W, N and G of the instance; None for other modes. kv_cache_reuse: false for an
    instance that computes the whole prompt of each request."""

    mode: Mode
    limits: RuntimeLimits
    lookahead: LookaheadConfig | None
    vocab_size: int
    kv_cache_reuse: bool = True


def strict_engine(resolved: ResolvedConfig, mode: Mode, vocab_size: int) -> StrictEngine:
    """The emulated engine of one mode of a config. Raises RepositoryError if the torch engine is too small for it."""
    context = BuildContext(resolved, None)
    limits = context.limits(mode)
    room = resolved.profile.engine.max_draft_tokens
    if limits.max_draft_len > room:
        raise RepositoryError(
            f"engine.strict_tensorrt_llm emulates an engine with {limits.max_draft_len} draft tokens ({mode}); "
            f"engine.max_draft_tokens is {room}. Raise it, or lower tensorrt_llm.max_external_draft_len or W, N and G."
        )
    lookahead = resolved.lookahead if mode == "lookahead" else None
    return StrictEngine(mode, limits, lookahead, vocab_size, context.kv_cache_reuse(mode))


def strict_profile(resolved: ResolvedConfig) -> ResolvedConfig:
    """The config of the emulating torch engine: it verifies the drafts of a request completely, and its only own draft
    source is the window."""
    sources = (SuppliedDraftConfig(), WindowDraftConfig())
    return resolved.with_settings("drafting", planner="fixed", sources=sources)


def strict_call(tensors: Tensors, request_id: str, engine: StrictEngine) -> EngineCall:
    """Convert the tensors of one row to a call of the engine. Raises RequestError if TensorRT-LLM would refuse them."""
    require_one_row(tensors)
    for tensor in TENSORRT_LLM_INPUTS:
        if tensor.name in tensors:
            raise RequestError(f"{tensor.name} is not an input of TensorRT-LLM; leave it out")
    refuse_unsupported(tensors)
    _refuse_logits(tensors)
    request = _with_sampling(generation_request(tensors, request_id), tensors, engine)
    _check_request(request, engine)
    drafts = _drafts(tensors, request, engine)
    lookahead = _lookahead(tensors, request, engine)
    sent_drafts = "draft_input_ids" in tensors
    request = _with_room(request, len(drafts) if sent_drafts else engine.limits.max_draft_len, engine.limits)
    if len(drafts):
        # The prompt's last token and the drafts are one step, which emits at most this number of tokens.
        tree, strategy, budget = chain(drafts.tolist()), "trie", DraftBudget(len(drafts), len(drafts))
    else:
        tree, strategy, budget = EMPTY_TREE, "none", DraftBudget(0, 0)
        if lookahead is not None and not lookahead.is_off:
            strategy, budget = "lookahead", DraftBudget(engine.limits.max_draft_len, engine.limits.max_draft_len)
    submission = Submission(
        request,
        strategy,
        budget,
        supplied=tree,
        only_supplied=True,
        lookahead=lookahead if strategy == "lookahead" else None,
        max_steps=1 if len(tree) else None,
        reuse=engine.kv_cache_reuse,
    )
    return call_of(tensors, submission, strict=True)


def require_outputs(names: Collection[str]) -> None:
    """Raise RequestError if a request does not ask for an output that TensorRT-LLM requires. names: requested outputs;
    all outputs if the client named none."""
    for name in REQUIRED_OUTPUTS:
        if name not in names:
            raise RequestError(f"the request must ask for the output {name}; add it to the requested outputs")


def _refuse_logits(tensors: Tensors) -> None:
    """Refuse guides and logits. Our configs of TensorRT-LLM do not enable them, and with speculation it returns only a
    part of the logits."""
    if tensors.get(GUIDE_TYPE) is not None:
        raise RequestError(f"{GUIDE_TYPE} was sent; the engine is served without guided decoding")
    for name in ("return_log_probs", "return_context_logits", "return_generation_logits"):
        if flag(tensors, name):
            raise RequestError(f"{name} is not supported by the emulated TensorRT-LLM; leave it out or send false")


def _with_sampling(request: GenerationRequest, tensors: Tensors, engine: StrictEngine) -> GenerationRequest:
    """Without top-k and top-p a request is greedy, even with a temperature. A lookahead engine is always greedy."""
    if engine.mode == "lookahead":
        return replace(request, sampling=SamplingParams())
    if (integer(tensors, "runtime_top_k") or 0) == 0 and (number(tensors, "runtime_top_p") or 0.0) <= 0.0:
        return replace(request, sampling=replace(request.sampling, temperature=0.0, top_k=0, top_p=1.0))
    return request


def _check_request(request: GenerationRequest, engine: StrictEngine) -> None:
    """Refuse what the torch engine accepts. `check_submission` has the other checks."""
    limits, num_tokens = engine.limits, len(request.prompt_ids)
    if num_tokens > limits.longest_prompt:
        chunked = "on" if limits.chunked_context else f"off, max_num_tokens {limits.max_num_tokens}"
        raise RequestError(
            f"the prompt has {num_tokens} tokens; the engine takes at most {limits.longest_prompt} "
            f"(max_seq_len {limits.max_seq_len}, chunked context {chunked})"
        )
    for end_id in request.end_ids:
        if end_id >= engine.vocab_size:
            raise RequestError(f"end_id is {end_id}; it must be in -1 .. {engine.vocab_size - 1}")


def _drafts(tensors: Tensors, request: GenerationRequest, engine: StrictEngine) -> IntArray:
    """The draft tokens to verify: those of the request, cut to the limit of the prompt length."""
    if "draft_input_ids" not in tensors:
        return np.empty(0, np.int32)
    drafts = token_ids(tensors, "draft_input_ids")
    limits = engine.limits
    if engine.mode != "trie":
        built = "lookahead decoding, and drafts for itself" if engine.mode == "lookahead" else "no speculative decoding"
        raise RequestError(f"draft_input_ids was sent; the engine is built for {built}")
    if not len(drafts):
        raise RequestError("draft_input_ids is empty; leave it out when there are no draft tokens")
    if len(drafts) > limits.max_draft_len:
        raise RequestError(
            f"draft_input_ids holds {len(drafts)} tokens; the engine verifies at most {limits.max_draft_len} "
            "(max_draft_len)"
        )
    if flag(tensors, "streaming"):
        raise RequestError("streaming is true beside draft_input_ids; a request with draft tokens is not streamed")
    return drafts[: limits.longest_prompt - len(request.prompt_ids)]


def _lookahead(tensors: Tensors, request: GenerationRequest, engine: StrictEngine) -> LookaheadConfig | None:
    """W, N and G of a request; None for an engine without lookahead decoding."""
    asked = lookahead_config(tensors)
    if engine.lookahead is None:
        if asked is not None:
            raise RequestError("lookahead_window_size was sent; the engine has no lookahead parameters")
        return None
    lookahead = engine.lookahead if asked is None else asked
    if lookahead.exceeds(engine.lookahead):
        raise RequestError(
            f"lookahead (W, N, G) is {lookahead.sizes}; the instance runs {engine.lookahead.sizes}, and no value may "
            "be larger"
        )
    if len(request.prompt_ids) < (missing := lookahead.max_ngram_size - 1):
        raise RequestError(
            f"the prompt has {len(request.prompt_ids)} tokens; lookahead n-grams of {lookahead.max_ngram_size} need at "
            f"least {missing}, so send smaller sizes"
        )
    return lookahead


def _with_room(request: GenerationRequest, num_reserved: int, limits: RuntimeLimits) -> GenerationRequest:
    """Limit the output of a request to the length that prompt and reserved drafts leave."""
    room = limits.max_seq_len - len(request.prompt_ids) - num_reserved
    if room < 1:
        raise RequestError(
            f"a prompt of {len(request.prompt_ids)} tokens leaves no room for output: the engine holds "
            f"{limits.max_seq_len} and keeps {num_reserved} for draft tokens"
        )
    num_new = min(request.max_new_tokens, room)
    return replace(request, max_new_tokens=num_new, min_new_tokens=min(request.min_new_tokens, num_new))

"""Selects the model and the strategy of a request.

The torch engine serves all strategies. A TensorRT-LLM engine has one speculative mode. With two such engines, greedy
requests go to the engine for lookahead decoding and sampled requests to the engine for external drafts, unless a
request sets the strategy. Options that the engine would ignore are refused, because the output would silently differ
from the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.grammar.guide import TENSORRT_LLM_KINDS, Guide
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.strategy import STRATEGIES
from pipeline.engine.traits import TargetTraits
from pipeline.errors import RequestError
from pipeline.triton_models.text_request import TextRequest


class Route(NamedTuple):
    """Model and strategy for a request. model: index among the served models. strategy: never "auto". lookahead: W, N
    and G to send, if any."""

    model: int
    strategy: str
    lookahead: LookaheadConfig | None


def offered_strategies(models: Sequence[TargetTraits]) -> tuple[str, ...]:
    """Strategies that a request may name, besides "auto"."""
    return tuple(name for name in STRATEGIES if any(name in traits.strategies for traits in models))


def route_of(models: Sequence[TargetTraits], request: TextRequest) -> Route:
    """The route of a request. Raises RequestError if no model can serve it."""
    strategies = offered_strategies(models)
    strategy = request.strategy
    if strategy != "auto" and strategy not in strategies:
        there = ", ".join(sorted(strategies))
        raise RequestError(f"strategy is {strategy[:40]!r}; this engine offers {there} and auto")
    if models[0].extended:
        return Route(0, "hybrid" if strategy == "auto" else strategy, request.lookahead)
    _require_no_logits(request)
    if request.generation.guide is not None:
        return _guided_route(models, request.generation.guide, strategy)
    if request.generation.sampling.prompt_ignore_length:
        raise RequestError("prompt_ignore_length was sent; TensorRT-LLM has no such tensor, so leave it out")
    if strategy == "auto":
        strategy = _choose(strategies, request)
    model = next(index for index, traits in enumerate(models) if strategy in traits.strategies)
    instance = models[model].lookahead
    if instance is None:
        _require_trie_tensors(request, strategy)
        return Route(model, strategy, None)
    _require_greedy(request)
    lookahead = lookahead_for_request(instance, request.lookahead, len(request.generation.prompt_ids))
    off = strategy == "none" or request.max_draft_tokens == 0
    return Route(model, strategy, LOOKAHEAD_OFF if off else lookahead)


def _choose(strategies: Sequence[str], request: TextRequest) -> str:
    """Resolve "auto": lookahead decoding where the request allows it, else drafts from the trie."""
    fits = request.lookahead is not None or not list(not_for_lookahead(request.generation))
    if "lookahead" in strategies and (fits or "trie" not in strategies):
        return "lookahead"
    return "trie" if "trie" in strategies else "none"


def _guided_route(models: Sequence[TargetTraits], guide: Guide, strategy: str) -> Route:
    """Requests with a grammar go to a TensorRT-LLM engine without speculation and with guided decoding."""
    model = next((index for index, traits in enumerate(models) if traits.guided), None)
    if model is None or strategy not in ("auto", "none"):
        raise RequestError(
            "guided_decoding_guide was sent; TensorRT-LLM 1.2 applies grammars in plain decoding only: serve without "
            "speculation and with guided_decoding_backend xgrammar, or use the torch engine"
        )
    if guide.kind not in TENSORRT_LLM_KINDS:
        raise RequestError(
            f"the guide type is {guide.kind!r}; TensorRT-LLM has {', '.join(TENSORRT_LLM_KINDS)}; send one of these"
        )
    return Route(model, "none", None)


def _require_no_logits(request: TextRequest) -> None:
    if request.wanted.of_output or request.wanted.of_prompt:
        raise RequestError(
            "log probabilities or logits were asked for; with TensorRT-LLM's speculative modes they are not complete, "
            "so they are served by the torch engine only; leave them out"
        )


def _require_greedy(request: TextRequest) -> None:
    ignored = list(not_for_lookahead(request.generation))
    if ignored:
        raise RequestError(
            f"an engine built for lookahead decoding decodes greedily and does not apply {', '.join(ignored)}; leave "
            "them out, or ask for strategy trie where it is served"
        )


def _require_trie_tensors(request: TextRequest, strategy: str) -> None:
    if request.lookahead is not None:
        raise RequestError(
            f"lookahead_window_size was sent, and strategy {strategy} goes to an engine without lookahead decoding; "
            "leave the three sizes out"
        )
    sampling = request.generation.sampling
    if sampling.min_p and not sampling.greedy:
        raise RequestError(f"min_p is {sampling.min_p:g}; TensorRT-LLM has no tensor for it, so leave it out")


def lookahead_for_request(instance: LookaheadConfig, asked: LookaheadConfig | None, prompt_len: int) -> LookaheadConfig:
    """W, N and G to send with a request. instance: those of the engine. asked: the request's own, if any. prompt_len:
    in tokens.

    Raises RequestError if a value exceeds the instance's: the backend would fail the whole batch. With a prompt shorter
    than N - 1 tokens the engine would read before its beginning, so N is lowered to prompt_len + 1.
    """
    lookahead = instance if asked is None else asked
    if lookahead.exceeds(instance):
        raise RequestError(
            f"lookahead (W, N, G) is {lookahead.sizes}; the server runs {instance.sizes}, and no value may be larger"
        )
    if prompt_len >= lookahead.max_ngram_size - 1:
        return lookahead
    return lookahead.model_copy(update={"max_ngram_size": prompt_len + 1}) if prompt_len >= 1 else LOOKAHEAD_OFF


def not_for_lookahead(request: GenerationRequest) -> Iterator[str]:
    """Yield the names of a request's settings that a lookahead engine would ignore: it decodes greedily, without
    penalties, banned words or biases, and has one end token."""
    sampling, harmless = request.sampling, SamplingParams()
    names = ["repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words"]
    if not sampling.greedy:
        names += ["temperature", "top_k", "top_p", "min_p"]
    for name in names:
        if getattr(sampling, name) != getattr(harmless, name):
            yield name
    if sampling.embedding_bias is not None:
        yield "embedding_bias"
    if request.min_new_tokens and (len(request.end_ids) > 1 or request.stop_sequences):
        yield "min_tokens (the output ends at several tokens)"

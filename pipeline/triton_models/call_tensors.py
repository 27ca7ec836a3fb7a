"""The tensors of one call from the BLS model to `tensorrt_llm`."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.request import SamplingParams
from pipeline.decoding.session import Session
from pipeline.decoding.tree import DraftTree
from pipeline.triton_models.call_planning import PlannedCall
from pipeline.triton_models.engine_binding import EngineBinding
from pipeline.triton_models.guide_tensors import guide_tensors, logit_option_tensors
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Array, float_tensor, int_tensor, pack_word_list, text_tensor
from pipeline.triton_models.text_request import TextRequest

# Distance of the seeds of two calls of one request: odd, so that all differ, and far from seeds that clients choose.
_SEED_STEP = 0x9E3779B97F4A7C15


def call_tensors(
    request: TextRequest, session: Session, engine: EngineBinding, step: PlannedCall, call_number: int
) -> dict[str, Array]:
    """Input tensors of a call to `tensorrt_llm`: the context as the prompt, and the step's drafts. A streamed call asks
    for a response per step, and for an end at the tokens of each stop word."""
    wanted, context, traits, streamed = request.generation, session.context, engine.traits, engine.is_streamed
    num_missing = max(0, wanted.min_new_tokens - len(session.output_ids))
    # Triton needs about 20 us per tensor, so tensors with a neutral value are left out.
    tensors: dict[str, Array] = {
        "input_ids": context[None].astype(np.int32),
        "input_lengths": int_tensor(len(context)),
        "request_output_len": int_tensor(step.num_tokens),
        "exclude_input_in_output": np.asarray([[True]]),
        "return_perf_metrics": np.asarray([[True]]),
        "seed": np.asarray([[_seed(wanted.sampling.seed, call_number, traits.keyed_noise)]], np.uint64),
        **_sampling_tensors(wanted.sampling),
    }
    if num_missing:
        tensors["min_tokens"] = int_tensor(min(num_missing, step.num_tokens))
    bad_words = wanted.sampling.bad_words
    if request.end_id is not None:
        tensors["end_id"] = int_tensor(request.end_id)
    if late := late_ids(request, len(session.output_ids)):
        if traits.extended:
            tensors["late_ids"] = np.asarray([late], np.int32)
        elif step.num_tokens <= num_missing:  # in a longer call they may end the output
            bad_words = (*bad_words, *((token,) for token in late))
    if streamed:
        tensors["streaming"] = np.asarray([[True]])
    if stops := stop_tokens(request) if streamed else _end_tokens(request):
        tensors["stop_words_list"] = pack_word_list(stops)[None]
    if bad_words:
        tensors["bad_words_list"] = pack_word_list(bad_words)[None]
    if len(step.tree):
        tensors["draft_input_ids"] = step.tree.token_ids[None]
    if engine.lookahead is not None:
        names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
        tensors |= {name: int_tensor(value) for name, value in zip(names, engine.lookahead.sizes, strict=True)}
    if wanted.guide is not None:
        tensors |= guide_tensors(wanted.guide)
    if traits.extended:
        tensors |= _extended_tensors(request, step.tree, engine.strategy)
        tensors |= logit_option_tensors(request.wanted, of_prompt=call_number == 0)
        if wanted.guide is not None:
            tensors["num_resumed_tokens"] = int_tensor(len(session.output_ids))
            if len(wanted.end_ids) > 1:
                tensors["end_ids"] = np.asarray([sorted(wanted.end_ids)], np.int32)
        least_tokens = min(step.num_tokens, step.max_steps or step.num_tokens)
        tensors["to_be_continued"] = np.asarray([[least_tokens < session.num_remaining_tokens]])
        if step.max_steps is not None:
            tensors["max_steps"] = int_tensor(step.max_steps)
    return tensors


def late_ids(request: TextRequest, num_output_tokens: int) -> list[int]:
    """End tokens that the target does not receive as its end token, and stop words that are a special token, while
    min_tokens bans them; none afterwards."""
    generation = request.generation
    if num_output_tokens >= generation.min_new_tokens:
        return []
    return sorted((generation.end_ids - {request.end_id}).union(*generation.stop_sequences))


def stop_tokens(request: TextRequest) -> list[tuple[int, ...]]:
    """Token sequences that end a streamed call, including the tokens of each stop word. Other tokens may spell a stop
    word too, so the text is searched as well."""
    return list(dict.fromkeys((*_end_tokens(request), *(ids for ids in request.stop_tokens if ids))))


def _end_tokens(request: TextRequest) -> list[tuple[int, ...]]:
    """Token sequences after which the target can stop: end tokens that it does not receive as its end token, and stop
    sequences. The session checks for both as well."""
    generation = request.generation
    others = ((token,) for token in sorted(generation.end_ids) if token != request.end_id)
    return [*others, *generation.stop_sequences]


def _sampling_tensors(params: SamplingParams) -> dict[str, Array]:
    tensors: dict[str, Array] = {
        "temperature": float_tensor(1.0 if params.greedy else params.temperature),
        "runtime_top_k": int_tensor(1 if params.greedy else params.top_k),
    }
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    tensors |= {name: float_tensor(value) for name in neutral if (value := getattr(params, name)) != neutral[name]}
    if not params.greedy:
        tensors["runtime_top_p"] = float_tensor(params.top_p)
    if params.embedding_bias is not None:
        tensors["embedding_bias"] = params.embedding_bias[None]
    return tensors


def _extended_tensors(request: TextRequest, tree: DraftTree, strategy: str) -> dict[str, Array]:
    tensors: dict[str, Array] = {"draft_strategy": text_tensor(strategy)}
    params = request.generation.sampling
    if params.min_p and not params.greedy:
        tensors["runtime_min_p"] = float_tensor(params.min_p)
    if params.prompt_ignore_length:
        tensors["prompt_ignore_length"] = int_tensor(params.prompt_ignore_length)
    if request.generation.namespace:
        tensors["draft_namespace"] = text_tensor(request.generation.namespace)
    if request.traceparent is not None:
        tensors[TRACEPARENT] = text_tensor(request.traceparent)
    if request.max_draft_tokens is not None:
        tensors["max_draft_tokens"] = int_tensor(request.max_draft_tokens)
    if len(tree):
        tensors["draft_parents"] = tree.parents[None]
        if tree.probabilities is not None:
            tensors["draft_probabilities"] = np.clip(tree.probabilities, 0.0, 1.0)[None]
    return tensors


def _seed(seed: int, call_number: int, keyed_noise: bool) -> int:
    """Seed of one call. A target whose noise depends on the seed and the position gets the request's seed; a target
    that restarts its noise with each call gets a different seed per call."""
    return seed if keyed_noise else (seed + call_number * _SEED_STEP) % (1 << 64)

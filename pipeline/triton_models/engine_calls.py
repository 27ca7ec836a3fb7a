"""Converts the input tensors of the model `tensorrt_llm` to requests of our scheduler.

Semantics are those of TensorRT-LLM: a request with draft tokens ends after one verify step, a request without draft
tokens runs to its end; `max_steps` overrides both. An end token is neither returned nor counted. Options that the torch
engine does not support are refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from pydantic import ValidationError

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, FloatArray, check_tree, depths
from pipeline.engine.submission import Submission
from pipeline.errors import RequestError
from pipeline.triton_models.engine_responses import EngineCall
from pipeline.triton_models.guide_tensors import guide_of, logit_options_of
from pipeline.triton_models.tensors import (
    Tensors,
    flag,
    integer,
    number,
    require_one_row,
    text,
    token_ids,
    word_list,
)

# Tensors that would change the output and that the torch engine does not support.
_UNSUPPORTED = (
    "encoder_input_features",
    "draft_logits",
    "draft_acceptance_threshold",
    "prompt_embedding_table",
    "cross_attention_mask",
    "skip_cross_attn_blocks",
    "mrope_rotary_cos_sin",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "context_phase_params",
)
# The only value that the torch engine supports, by tensor.
_FIXED = {"beam_width": 1, "num_return_sequences": 1, "runtime_top_p_decay": 1}
_LOOKAHEAD = ("window_size", "ngram_size", "verification_set_size")
NO_DRAFTS = DraftBudget(0, 0)


def engine_call(
    tensors: Tensors,
    request_id: str,
    default_strategy: str = "none",
    default_budget: DraftBudget = NO_DRAFTS,
) -> EngineCall:
    """Read a request of one row from its tensors. default_strategy, default_budget: strategy and draft budget of a
    request that sets neither a strategy nor draft tokens. Raises RequestError if the tensors contradict each other or
    request an unsupported option."""
    require_one_row(tensors)
    refuse_unsupported(tensors)
    tree = _tree(tensors)
    strategy, max_steps = text(tensors, "draft_strategy"), integer(tensors, "max_steps", 1)
    only_supplied = len(tree) > 0 and strategy is None
    request = generation_request(tensors, request_id)
    budget = default_budget
    if len(tree):
        # A grammar adds the tokens that it forces.
        least = NO_DRAFTS if only_supplied and request.guide is None else default_budget
        budget = DraftBudget(max(len(tree), least.max_nodes), max(int(depths(tree).max()), least.max_depth))
    if (limit := integer(tensors, "max_draft_tokens")) is not None:
        budget = DraftBudget(max(0, min(limit, budget.max_nodes)), budget.max_depth)
    submission = Submission(
        request=request,
        strategy=strategy or ("trie" if only_supplied else default_strategy),
        budget=budget,
        supplied=tree,
        only_supplied=only_supplied,
        lookahead=lookahead_config(tensors),
        max_steps=max_steps or (1 if len(tree) else None),
        to_be_continued=flag(tensors, "to_be_continued"),
        wanted=logit_options_of(tensors),
    )
    return call_of(tensors, submission)


def call_of(tensors: Tensors, submission: Submission, strict: bool = False) -> EngineCall:
    """The call of a submission, with the response options of its tensors."""
    return EngineCall(
        submission=submission,
        streaming=flag(tensors, "streaming"),
        exclude_input=flag(tensors, "exclude_input_in_output"),
        return_perf_metrics=flag(tensors, "return_perf_metrics"),
        return_num_input_tokens=flag(tensors, "return_num_input_tokens"),
        return_num_output_tokens=flag(tensors, "return_num_output_tokens"),
        strict=strict,
    )


def rows_of(tensors: Tensors) -> list[Tensors]:
    """Split a request into requests of one row each. Prompts stay padded to a common length. Raises RequestError if
    tensors differ in their number of rows."""
    num_rows = max((len(value) for value in tensors.values() if value.ndim), default=1)
    if num_rows == 1:
        return [tensors]
    for name, value in tensors.items():
        if len(value) != num_rows:
            raise RequestError(f"{name} has {len(value)} rows, other tensors have {num_rows}")
    return [{name: value[row : row + 1] for name, value in tensors.items()} for row in range(num_rows)]


def sampling_of(
    tensors: Tensors, prefix: str = "", *, bad_words: Sequence[tuple[int, ...]], embedding_bias: FloatArray | None
) -> SamplingParams:
    """Sampling parameters from the tensors of one row, as TensorRT-LLM interprets them. prefix: of the tensor names of
    top_k, top_p and min_p.

    Decoding is greedy with top_k 1, with temperature 0, with top_k 0 together with top_p 0, or if none of top_k, top_p
    and temperature is sent. Otherwise the default temperature is 1, and a top_k or top_p of 0 is off. Raises
    RequestError for a value out of its range."""
    temperature, top_k = number(tensors, "temperature", 0), integer(tensors, f"{prefix}top_k", 0)
    top_p, min_p = number(tensors, f"{prefix}top_p", 0, 1), number(tensors, f"{prefix}min_p", 0, 1)
    repetition_penalty = number(tensors, "repetition_penalty")
    greedy = (
        top_k == 1
        or temperature == 0
        or (temperature is None and not top_k and not top_p)
        or (top_k == 0 and top_p == 0)
    )
    return SamplingParams(
        temperature=0.0 if greedy else 1.0 if temperature is None else temperature,
        top_k=0 if greedy else top_k or 0,
        top_p=1.0 if greedy else top_p or 1.0,
        min_p=0.0 if greedy else min_p or 0.0,
        repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        presence_penalty=number(tensors, "presence_penalty") or 0.0,
        frequency_penalty=number(tensors, "frequency_penalty") or 0.0,
        prompt_ignore_length=integer(tensors, "prompt_ignore_length", 0) or 0,
        bad_words=tuple(bad_words),
        embedding_bias=embedding_bias,
        seed=integer(tensors, "seed", 0) or 0,
    )


def generation_request(tensors: Tensors, request_id: str) -> GenerationRequest:
    """The generation request in the tensors of one row. Raises RequestError for invalid values."""
    prompt = token_ids(tensors, "input_ids")
    prompt = prompt[: integer(tensors, "input_lengths", 0, len(prompt))]
    end_id = integer(tensors, "end_id", -1)  # -1: none
    bias = tensors.get("embedding_bias")
    num_resumed = integer(tensors, "num_resumed_tokens") or 0
    max_tokens, min_tokens = integer(tensors, "request_output_len") or 0, integer(tensors, "min_tokens") or 0
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt,
        max_new_tokens=max_tokens + num_resumed,
        min_new_tokens=min_tokens + num_resumed if min_tokens else 0,
        end_ids=frozenset(([] if end_id is None or end_id < 0 else [end_id]) + token_ids(tensors, "end_ids").tolist()),
        late_ids=frozenset(token_ids(tensors, "late_ids").tolist()),
        namespace=text(tensors, "draft_namespace") or "",
        stop_sequences=word_list(tensors, "stop_words_list"),
        sampling=sampling_of(
            tensors,
            "runtime_",
            bad_words=word_list(tensors, "bad_words_list"),
            embedding_bias=bias.reshape(-1).astype(np.float32) if bias is not None and bias.any() else None,
        ),
        num_resumed_tokens=num_resumed,
        guide=guide_of(tensors),
    )


def _tree(tensors: Tensors) -> DraftTree:
    if "draft_input_ids" not in tensors:
        for name in ("draft_parents", "draft_probabilities"):
            if name in tensors:
                raise RequestError(f"{name} was sent without draft_input_ids; send both or neither")
        return EMPTY_TREE
    tokens = token_ids(tensors, "draft_input_ids")
    if not len(tokens):
        raise RequestError("draft_input_ids is empty; leave it out when there are no draft tokens")
    parents = token_ids(tensors, "draft_parents") if "draft_parents" in tensors else np.arange(-1, len(tokens) - 1)
    probabilities = tensors.get("draft_probabilities")
    tree = DraftTree(
        tokens,
        parents.astype(np.int32),
        None if probabilities is None else probabilities.reshape(-1).astype(np.float32),
    )
    try:
        check_tree(tree)
    except ValueError as error:
        raise RequestError(str(error)) from error
    values = tree.probabilities
    if values is not None and not (len(values) == len(tree) and ((values >= 0) & (values <= 1)).all()):
        raise RequestError(f"draft_probabilities must be {len(tree)} numbers in 0 .. 1, one per draft token")
    return tree


def lookahead_config(tensors: Tensors) -> LookaheadConfig | None:
    """W, N and G of a request; None if it sets none. Raises RequestError if it sets only some of them, or impossible
    sizes."""
    window, ngram, candidates = (integer(tensors, f"lookahead_{name}") for name in _LOOKAHEAD)
    if window is None and ngram is None and candidates is None:
        return None
    if window is None or ngram is None or candidates is None:
        raise RequestError(f"lookahead_{', lookahead_'.join(_LOOKAHEAD)} belong together; send all three or none")
    try:
        return LookaheadConfig.of(window, ngram, candidates)
    except ValidationError as error:
        faults = "; ".join(_lookahead_fault(fault["msg"], fault["loc"]) for fault in error.errors())
        raise RequestError(f"lookahead sizes ({window}, {ngram}, {candidates}) are not possible: {faults}") from error


def _lookahead_fault(text: str, setting: tuple[int | str, ...]) -> str:
    """pydantic's message about W, N or G, with the tensor's name instead of "Input"."""
    name = "".join(map(str, setting)).replace("max_", "lookahead_")
    return text.removeprefix("Value error, ").replace("Input", name)


def refuse_unsupported(
    tensors: Tensors,
    names: Sequence[str] = _UNSUPPORTED,
    fixed: Mapping[str, int] = MappingProxyType(_FIXED),
    by: str = "the torch engine",
) -> None:
    """Raise RequestError for an unsupported tensor that would change the output. names: tensors that must be absent,
    empty or zero. fixed: the only allowed value, by tensor. by: the component that the message names."""
    for name in names:
        if name in tensors and tensors[name].size and any(tensors[name].reshape(-1).tolist()):
            raise RequestError(f"{name} is not supported by {by}; leave it out")
    for name, value in fixed.items():
        sent = number(tensors, name)
        if sent is not None and sent != value:
            raise RequestError(f"{name} is {sent:.10g}; {by} supports {value} only")

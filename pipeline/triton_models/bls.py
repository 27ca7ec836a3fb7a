"""Serving logic of the model `lookahead_bls`, independent of Triton's API."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.config.schema import ResolvedConfig, kinds_on
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.session import Session
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.sources.trie import TrieSource
from pipeline.decoding.strategy import source_names
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.artifact import ENGINE, MANIFEST, TOKENIZER, Manifest
from pipeline.engine.backend import backend_of
from pipeline.engine.traits import TargetTraits
from pipeline.errors import RepositoryError, RequestError
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.call_planning import tree_budget
from pipeline.triton_models.engine_binding import EngineBinding
from pipeline.triton_models.fair_slots import FairSlots, HeldSlot
from pipeline.triton_models.generation import Generation
from pipeline.triton_models.metrics import OnEnd
from pipeline.triton_models.partial_output import PartialOutput, output_of
from pipeline.triton_models.routing import offered_strategies, route_of
from pipeline.triton_models.sequences import TextResponse
from pipeline.triton_models.side_channel import in_fixed_chunks, require_no_figures, without_figures
from pipeline.triton_models.stream_calls import StreamingCaller
from pipeline.triton_models.tensors import Array, Tensors, float_tensor, int_tensor, text_tensor
from pipeline.triton_models.text_codec import TextCodec, load_codec
from pipeline.triton_models.text_request import TextRequest, require_few_logits, text_request

# Longest text, in bytes, that is tokenized in the event loop. A longer one would delay other requests.
_SHORT_TEXT = 4096
# Bytes added for each word of a list, because each is tokenized separately.
_WORD_BYTES = 32


@dataclass(frozen=True, slots=True)
class _ServedTarget:
    """One target model and the slots of its engine. A request occupies a slot, which holds its KV cache, between two
    calls. So the number of slots limits the number of running requests; the others wait."""

    target: StreamingCaller
    traits: TargetTraits
    slots: FairSlots
    costs: CallCosts | None


class Bls:
    """Serves text requests with the target models of a config. targets: in the order of the backend's traits. drafter:
    of its draft sources. Not thread safe: runs in one event loop."""

    def __init__(self, resolved: ResolvedConfig, codec: TextCodec, targets: Sequence[StreamingCaller]) -> None:
        profile = resolved.profile
        self._codec = codec
        self._served = [
            _ServedTarget(
                target,
                traits,
                FairSlots(profile.engine.max_batch_size, profile.scheduling.max_queue_size),
                None if profile.drafting.planner == "fixed" else CallCosts(),
            )
            for target, traits in zip(targets, backend_of(resolved.backend).traits(resolved), strict=True)
        ]
        self._models = [served.traits for served in self._served]
        # A profile may name a strategy that this engine lacks. A request that names one gets an error.
        strategy = profile.drafting.strategy
        self._strategy = strategy if strategy in offered_strategies(self._models) else "auto"
        self._budget = DraftBudget(profile.drafting.max_draft_tokens, profile.drafting.max_draft_len)
        self.drafter = create_drafter(profile.drafting.sources, resolved.lookahead, codec.vocab_size, kinds_on("bls"))
        self._trie = next((source.trie for source in self.drafter.sources if isinstance(source, TrieSource)), None)
        self._supplied = next((s for s in self.drafter.sources if isinstance(s, SuppliedSource)), None)
        self._is_safe = profile.server.side_channel_safe
        self._max_logits_bytes = profile.server.gateway.max_logits_bytes
        self._shares_drafts = profile.server.gateway.share_drafts
        self._longest_prompt = max(traits.longest_prompt for traits in self._models)
        self._readers = ThreadPoolExecutor(1, "tokenizer")

    async def answer(
        self, tensors: Tensors, on_end: OnEnd = lambda generation: None
    ) -> AsyncGenerator[TextResponse, None]:
        """Yield the responses to one request. Closing the generator early cancels the request. on_end: receives the
        ended request. Raises RequestError for an invalid request, BusyError if the queue is full."""
        started = time.perf_counter()
        request = await self._read(tensors)
        route = route_of(self._models, request)
        served = self._served[route.model]
        _require_fit(request, served.traits)
        require_few_logits(request, self._codec.vocab_size, served.traits.max_seq_len, self._max_logits_bytes)
        if self._is_safe:
            require_no_figures(request)
        engine = EngineBinding(served.target, served.traits, route.strategy, route.lookahead, served.costs)
        async with served.slots.slot(request.tenant) as slot:
            generation = self._generation(request, engine, slot, started)
            try:
                async with aclosing(self._responses(generation)) as responses:
                    async for response in responses:
                        yield response
                if generation.finish_reason is not None:
                    generation.outcome = generation.finish_reason.value
            except (GeneratorExit, asyncio.CancelledError):
                generation.outcome = "cancelled"
                raise
            finally:
                on_end(generation)

    def gauges(self) -> dict[str, int]:
        """The gauges of `BLS_METRICS`: size of the shared trie, which is zero without one, and failures of the draft
        sources."""
        return {
            "trie_nodes": 0 if self._trie is None else self._trie.num_nodes,
            "trie_bytes": 0 if self._trie is None else self._trie.arrays.num_bytes,
            "draft_source_failures": sum(self.drafter.failures.values()),
        }

    async def _read(self, tensors: Tensors) -> TextRequest:
        """Tokenize long texts outside the event loop, one at a time, so that other requests continue."""
        # Clients may reuse an id, so each request gets a unique one. It cannot be guessed, because it can stop the
        # request.
        request_id = f"bls-{secrets.token_hex(16)}"
        options = self._strategy, self._longest_prompt, self._shares_drafts
        read = partial(text_request, self._codec, tensors, request_id, *options)
        if _num_text_bytes(tensors) <= _SHORT_TEXT:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def _responses(self, generation: Generation) -> AsyncGenerator[TextResponse, None]:
        request = generation.request
        kept: list[PartialOutput] = []
        in_chunks = self._is_safe and request.stream
        run = in_fixed_chunks(generation.run(), request.tokens_only) if in_chunks else generation.run()
        async with aclosing(run) as parts:
            async for part in parts:
                if not request.stream or (generation.finish_reason is not None and not in_chunks):
                    kept.append(part)
                elif part.text or part.logits or request.tokens_only:
                    yield TextResponse(output_of([part], request.tokens_only), last=False)
        if request.echo:
            space = self._codec.space_between(request.generation.prompt_ids.tolist(), generation.output_ids)
            kept.insert(0, PartialOutput(request.echo + space, []))
        output = output_of(kept, request.tokens_only)
        yield TextResponse(output | _last_tensors(generation, self._is_safe), last=True)

    def _generation(self, request: TextRequest, engine: EngineBinding, slot: HeldSlot, started: float) -> Generation:
        names = source_names(engine.strategy, self.drafter.names)
        budget = self._budget
        if request.max_draft_tokens is not None:
            budget = DraftBudget(min(budget.max_nodes, request.max_draft_tokens), budget.max_depth)
        if engine.traits.limits is not None:
            budget = tree_budget(budget, engine.traits.limits)
        session = Session(request.generation, self.drafter, names, budget, engine.traits.max_seq_len)
        prediction = None
        if self._supplied is not None and self._supplied.name in names and len(request.prediction):
            prediction = self._supplied.predict(request.generation.request_id, request.prediction)
        return Generation(request, session, self._codec, engine, slot, started, prediction)


def load_bls(
    artifact_dir: Path,
    resolved: ResolvedConfig,
    fingerprint: str,
    vocab_size: int,
    targets: Mapping[str, StreamingCaller],
) -> Bls:
    """Load the tokenizer of an artifact, and the draft sources of a config. resolved, fingerprint: settings of the
    model repository, and of the engine that it was made for. targets: by model name. Raises ConfigError or
    RepositoryError if a file cannot be read, or the engine is another one."""
    if Manifest.model_validate_json((artifact_dir / MANIFEST).read_bytes()).fingerprint_digest != fingerprint:
        raise RepositoryError(
            f"The engine in {artifact_dir} was built again with other settings, and this model repository belongs to "
            "the old one. Run `lookahead stop` and `lookahead serve`."
        )
    codec = load_codec(artifact_dir / TOKENIZER, artifact_dir / ENGINE, vocab_size)
    models = backend_of(resolved.backend).traits(resolved)
    for traits in models:
        if not traits.extended:  # TensorRT-LLM's output is streamed
            targets[traits.model].connect()
    warm_up()
    # The first use initializes a tokenizer, which is not thread safe.
    codec.encode("a")
    return Bls(resolved, codec, [targets[traits.model] for traits in models])


def _num_text_bytes(tensors: Tensors) -> int:
    """Bytes of all texts, plus `_WORD_BYTES` for each."""
    values = [value for value in tensors.values() if value.dtype == np.object_]
    return sum(_WORD_BYTES * value.size + sum(map(len, value.reshape(-1))) for value in values)


def _require_fit(request: TextRequest, traits: TargetTraits) -> None:
    num_tokens = len(request.generation.prompt_ids)
    if num_tokens > traits.longest_prompt:
        raise RequestError(
            f"the prompt has {num_tokens} tokens; prompt and output may have {traits.longest_prompt + 1}; "
            "shorten it or build with a larger engine.max_seq_len"
        )


def _last_tensors(generation: Generation, is_safe: bool) -> dict[str, Array]:
    """Outputs that only the last response has."""
    request, statistics = generation.request, generation.statistics
    assert generation.finish_reason is not None, "the last response follows the end of the generation"
    tensors = {"finish_reason": text_tensor(generation.finish_reason.value)[0]}
    drafted, accepted = statistics.num_draft_tokens, statistics.num_accepted_tokens
    if request.return_perf_metrics:
        tensors["acceptance_rate"] = float_tensor(accepted / drafted if drafted else 0.0)
        tensors["total_accepted_draft_tokens"] = int_tensor(accepted)
        tensors["total_draft_tokens"] = int_tensor(drafted)
    if request.return_num_input_tokens:
        num_input = len(request.generation.prompt_ids) - request.generation.num_resumed_tokens
        tensors["num_input_tokens"] = int_tensor(num_input)
    if request.return_num_output_tokens:
        tensors["num_output_tokens"] = int_tensor(generation.num_output_tokens)
    if request.return_statistics:
        figures = _statistics(generation)
        tensors["statistics"] = text_tensor(json.dumps(without_figures(figures) if is_safe else figures))[0]
    return tensors


def _statistics(generation: Generation) -> dict[str, object]:
    """The output `statistics`; times in seconds since the request arrived."""
    request, statistics = generation.request, generation.statistics
    tokens = {"prompt_ids": request.generation.prompt_ids.tolist(), "output_ids": generation.output_ids}
    times = [when - generation.started for when in generation.step_times]
    return {
        "strategy": generation.engine.strategy,
        "model": generation.engine.traits.model,
        "finish_reason": generation.finish_reason and generation.finish_reason.value,
        **({} if request.tokens_only else tokens),
        "num_steps": statistics.num_steps,
        "num_drafted_steps": statistics.num_drafted_steps,
        "num_engine_calls": generation.num_calls,
        "num_draft_tokens": statistics.num_draft_tokens,
        "num_accepted_tokens": statistics.num_accepted_tokens,
        "num_prediction_tokens": len(request.prediction),
        "num_accepted_prediction_tokens": 0 if generation.prediction is None else generation.prediction.num_accepted,
        "acceptance_lengths": statistics.acceptance_lengths,
        "mean_acceptance_length": statistics.mean_acceptance_length,
        "draft_seconds": statistics.draft_seconds,
        "time_to_first_token_s": times[0] if times else None,
        "step_times_s": times,
        "total_s": time.perf_counter() - generation.started,
    }

"""Losslessness through a running server: token ids and text of every strategy, one by one and many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipeline.bench.contenders.remote import Ask, fresh_namespace, generate, measured_request
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request
from pipeline.bench.verify.verify import Comparison, compare, decodings
from pipeline.config.schema import Dtype
from pipeline.engine.contract import Engine
from pipeline.server.client import Completion

# Requests in flight while all strategies are mixed.
NUM_CLIENTS = 8

References = Mapping[tuple[str, str], list[int]]


def verify_server(
    url: str,
    engine: Engine,
    dtype: Dtype,
    references: References,
    decode: Callable[[Sequence[int]], str],
    strategies: Sequence[str],
    prompts: Sequence[NamedPrompt],
    options: MeasureOptions,
    on_comparison: Callable[[Comparison], None] = lambda comparison: None,
) -> list[Comparison]:
    """Comparisons of every strategy (plain decoding too) with the reference outputs by (prompt id, decoding), which
    come from an engine in process. decode: their text, without the end token; the streamed text must equal it."""
    comparisons: list[Comparison] = []
    for decoding_options in decodings(options):
        namespace = fresh_namespace()
        asks = [
            (prompt, Ask(prompt.prompt, options.max_new_tokens, strategy, decoding_options.sampling, namespace))
            for strategy in strategies
            for prompt in prompts
        ]
        answers = [("server", prompt, ask, generate(url, ask)) for prompt, ask in asks]
        answers += [("server batch", *entry) for entry in _at_once(url, asks)]
        for where, prompt, ask, answer in answers:
            request = make_request(decoding_options, prompt.prompt_ids)
            expected = references[prompt.prompt_id, "greedy" if request.sampling.greedy else "seeded"]
            comparison = compare(
                engine,
                dtype,
                request,
                expected,
                measured_request(answer, prompt.prompt_ids).output_ids,
                prompt_id=prompt.prompt_id,
                strategy=str(ask.strategy),
                where=where,
            )
            if comparison.verdict == "identical" and answer.text != decode(expected):
                comparison = replace(comparison, verdict="different", where=f"{where} (text)")
            comparisons.append(comparison)
            on_comparison(comparison)
    return comparisons


def _at_once(url: str, asks: Sequence[tuple[NamedPrompt, Ask]]) -> list[tuple[NamedPrompt, Ask, Completion]]:
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        answers = clients.map(lambda entry: generate(url, entry[1]), asks)
        return [(prompt, ask, answer) for (prompt, ask), answer in zip(asks, answers, strict=True)]

"""Losslessness through a running server: token ids and text of every strategy, one by one and many at once.

`verify_server` compares with outputs of the same engine in process. `verify_remote` is for an engine that runs in a
server only: it compares with plain decoding through the same server, so that the same kernels computed both. In 16 bit
the first difference of a pair is judged by the scores of a second engine that runs in this process (see `verify`); it
is loaded when it is needed. Sampled outputs of such an engine are not compared: its noise depends on the steps that a
request took.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipeline.bench.contenders.in_process import BASELINE
from pipeline.bench.contenders.remote import fresh_namespace, generate, measured_request, query_of
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request
from pipeline.bench.verify.verify import Comparison, compare, decodings, first_difference
from pipeline.config.schema import Dtype, ResolvedConfig
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.strategy import STRATEGIES
from pipeline.engine.backend import backend_of
from pipeline.engine.contract import Engine
from pipeline.errors import UserError
from pipeline.server.client import Completion, TextQuery
from pipeline.triton_models.routing import offered

# Requests in flight while all strategies are mixed.
NUM_CLIENTS = 8

References = Mapping[tuple[str, str], list[int]]
# Returns the engine that computes the scores of differing tokens, and the dtype of the engine under test.
Judge = Callable[[], tuple[Engine, Dtype]]


def remote_strategies(resolved: ResolvedConfig, wanted: Sequence[str] | None) -> list[str]:
    """Strategies that can be compared on an engine, plain decoding first. Raises UserError if there is nothing to
    compare, or a wanted strategy is not available."""
    there = [name for name in STRATEGIES if name in offered(backend_of(resolved.backend).traits(resolved))]
    if there == [BASELINE]:
        raise UserError(
            "This engine decodes without drafts, so there is nothing to compare. Build one with --set "
            f"{resolved.backend}.speculation=both, which serves lookahead and trie side by side."
        )
    if wrong := [name for name in wanted or () if name not in there]:
        raise UserError(f"There is no strategy {wrong[0]!r} on this engine; it offers {', '.join(there)}.")
    return [BASELINE, *(name for name in (wanted or there) if name != BASELINE)]


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
        for where, prompt, query, answer in answers_of(url, _queries(prompts, strategies, decoding_options)):
            request = make_request(decoding_options, prompt.prompt_ids)
            expected = references[prompt.prompt_id, "greedy" if request.sampling.greedy else "seeded"]
            found = measured_request(answer, prompt.prompt_ids).output_ids
            comparison = compare(engine, dtype, request, expected, found, prompt.prompt_id, str(query.strategy), where)
            if comparison.verdict == "identical" and answer.text != decode(expected):
                comparison = replace(comparison, verdict="different", where=f"{where} (text)")
            comparisons.append(comparison)
            on_comparison(comparison)
    return comparisons


def verify_remote(
    url: str,
    judge: Judge,
    strategies: Sequence[str],
    prompts: Sequence[NamedPrompt],
    options: MeasureOptions,
    on_comparison: Callable[[Comparison], None] = lambda comparison: None,
) -> list[Comparison]:
    """Comparisons of every strategy, one request at a time and many at once. strategies: plain decoding first."""
    greedy = replace(options, sampling=SamplingParams())
    # Plain decoding comes first, one request at a time: those are the reference outputs.
    answers = list(answers_of(url, _queries(prompts, strategies, greedy)))
    outputs = [
        without_end(measured_request(answer, prompt.prompt_ids).output_ids, options.end_ids)
        for _, prompt, _, answer in answers
    ]
    references = {prompt.prompt_id: tokens for prompt, tokens in zip(prompts, outputs, strict=False)}
    comparisons = []
    for (where, prompt, query, _), tokens in list(zip(answers, outputs, strict=True))[len(prompts) :]:
        prompt_id, strategy = prompt.prompt_id, str(query.strategy)
        if first_difference(references[prompt_id], tokens) is None:
            comparison = Comparison(prompt_id, strategy, "greedy", where, "identical", len(tokens))
        else:
            request, place = make_request(greedy, prompt.prompt_ids), (prompt_id, strategy, where)
            comparison = compare(*judge(), request, references[prompt_id], tokens, *place)
        comparisons.append(comparison)
        on_comparison(comparison)
    return comparisons


def answers_of(
    url: str, queries: Sequence[tuple[NamedPrompt, TextQuery]]
) -> Iterator[tuple[str, NamedPrompt, TextQuery, Completion]]:
    """The answers to requests one at a time, then to all of them at once. Each comes with "server" or
    "server batch"."""
    for prompt, query in queries:
        yield "server", prompt, query, generate(url, query)
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        answers = clients.map(lambda each: generate(url, each[1]), queries)
        for (prompt, query), answer in zip(queries, answers, strict=True):
            yield "server batch", prompt, query, answer


def _queries(
    prompts: Sequence[NamedPrompt], strategies: Sequence[str], options: MeasureOptions
) -> list[tuple[NamedPrompt, TextQuery]]:
    namespace = fresh_namespace()
    return [
        (prompt, query_of(prompt.prompt, options.max_new_tokens, strategy, options.sampling, namespace))
        for strategy in strategies
        for prompt in prompts
    ]


def without_end(tokens: Sequence[int], end_ids: Collection[int]) -> list[int]:
    """The output up to its end token, which some ways of decoding show and some do not."""
    end = next((place for place, token in enumerate(tokens) if token in end_ids), len(tokens))
    return list(tokens[:end])


def judging_config(resolved: ResolvedConfig, has_cuda: bool) -> ResolvedConfig:
    """The same model for our torch engine, which computes the logits of differing tokens; built under another profile
    name."""
    profile = resolved.profile
    judging = profile.model_copy(update={"name": f"{profile.name}-judge", "backend": "torch"})
    device = "cuda" if has_cuda else "cpu"
    return resolved.model_copy(update={"profile": judging, "backend": "torch", "device": device})

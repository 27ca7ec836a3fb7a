"""Losslessness through a running server: token ids and text of every strategy, one request at a time and in parallel.

`verify_server` compares with outputs of the same engine in process. `verify_remote` is for an engine that runs in a
server only. It compares with plain decoding through the same server, which uses the same kernels. In 16 bit, a second
engine in this process computes the scores at the first difference of a pair (see `verify`); it is loaded on demand.
Sampled outputs of such an engine are not compared, because its noise depends on the steps of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.bench.contenders.in_process import BASELINE
from pipeline.bench.contenders.remote import TIMEOUT_S, fresh_namespace, output_ids_of, query_of
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request
from pipeline.bench.verify.verify import Comparison, Judge, compare, decoding_of, decodings
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.request import SamplingParams
from pipeline.engine.backend import backend_of
from pipeline.errors import UserError
from pipeline.server.client import Completion, TextQuery, complete
from pipeline.server.client_threads import ClientThreads
from pipeline.triton_models.routing import offered_strategies

# Number of requests in flight in the parallel part.
NUM_CLIENTS = 8


def remote_strategies(resolved: ResolvedConfig, wanted: Sequence[str] | None) -> list[str]:
    """Strategies to compare on an engine, plain decoding first. wanted: None for all. Raises UserError if the engine
    has no other strategy than plain decoding, or lacks a wanted one."""
    there = offered_strategies(backend_of(resolved.backend).traits(resolved))
    if there == (BASELINE,):
        raise UserError(
            "This engine decodes without drafts, so there is nothing to compare. Build one with --set "
            f"{resolved.backend}.speculation=both, which serves lookahead and trie side by side."
        )
    if wrong := [name for name in wanted or () if name not in there]:
        raise UserError(f"There is no strategy {wrong[0][:40]!r} on this engine; it offers {', '.join(there)}.")
    return [BASELINE, *(name for name in (wanted or there) if name != BASELINE)]


def verify_server(
    url: str,
    judge: Judge,
    references: Mapping[tuple[str, str], list[int]],
    decode: Callable[[Sequence[int]], str],
    strategies: Sequence[str],
    prompts: Sequence[NamedPrompt],
    options: MeasureOptions,
    on_comparison: Callable[[Comparison], None] = lambda comparison: None,
) -> list[Comparison]:
    """Compare outputs of every strategy, including plain decoding, with reference outputs of an engine in process.
    references: token ids by (prompt id, decoding). decode: returns their text without the end token, which the streamed
    text must equal."""
    comparisons: list[Comparison] = []
    for decoding_options in decodings(options):
        for where, prompt, query, answer in answers_of(url, _queries(prompts, strategies, decoding_options)):
            request = make_request(decoding_options, prompt.prompt_ids)
            expected = references[prompt.prompt_id, decoding_of(request)]
            found = output_ids_of(answer, prompt.prompt_ids)
            labels = (prompt.prompt_id, str(query.strategy), where)
            comparison = compare(judge, request, expected, found, *labels)
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
) -> tuple[list[Comparison], dict[str, list[int]]]:
    """Comparisons of every strategy, one request at a time and many at once, and the outputs of plain decoding by
    prompt id. strategies: plain decoding first."""
    greedy = replace(options, sampling=SamplingParams())
    references: dict[str, list[int]] = {}
    comparisons = []
    for where, prompt, query, answer in answers_of(url, _queries(prompts, strategies, greedy)):
        tokens = without_end(output_ids_of(answer, prompt.prompt_ids), options.end_ids)
        if prompt.prompt_id not in references:  # plain decoding comes first, one request at a time
            references[prompt.prompt_id] = tokens
            continue
        request, labels = make_request(greedy, prompt.prompt_ids), (prompt.prompt_id, str(query.strategy), where)
        comparison = compare(judge, request, references[prompt.prompt_id], tokens, *labels)
        comparisons.append(comparison)
        on_comparison(comparison)
    return comparisons, references


def answers_of(
    url: str, queries: Sequence[tuple[NamedPrompt, TextQuery]]
) -> Iterator[tuple[str, NamedPrompt, TextQuery, Completion]]:
    """Yield the answers to requests sent one at a time ("server"), then to all of them in parallel ("server batch")."""
    for prompt, query in queries:
        yield "server", prompt, query, complete(query, url, "grpc", TIMEOUT_S)
    with ClientThreads(NUM_CLIENTS) as clients:
        answers = clients.map(lambda each: complete(each[1], url, "grpc", TIMEOUT_S), queries)
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
    """The output up to its end token, which not all engines return."""
    end = next((index for index, token in enumerate(tokens) if token in end_ids), len(tokens))
    return list(tokens[:end])


def judging_config(resolved: ResolvedConfig, has_cuda: bool) -> ResolvedConfig:
    """The config of the same model for our torch engine, which computes the logits at differing tokens, under another
    profile name."""
    profile = resolved.profile
    judging = profile.model_copy(update={"name": f"{profile.name}-judge", "backend": "torch"})
    device = "cuda" if has_cuda else "cpu"
    return resolved.model_copy(update={"profile": judging, "backend": "torch", "device": device})

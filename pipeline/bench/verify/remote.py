"""Losslessness of an engine that runs in a server only: every strategy's greedy tokens against those without drafts.

Both come from the same server, so that the same kernels computed them. In 16 bit the first difference of a pair is
judged by the scores of a second engine that runs in this process (see `verify`); it is loaded when it is needed.
Sampled outputs are not compared: this backend's noise depends on the steps that a request took.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipeline.bench.contenders.in_process import BASELINE
from pipeline.bench.contenders.remote import Ask, fresh_namespace, generate, measured_request
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request
from pipeline.bench.verify.server import NUM_CLIENTS
from pipeline.bench.verify.verify import Comparison, compare, first_difference
from pipeline.config.schema import Dtype, ResolvedConfig
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.strategy import STRATEGIES
from pipeline.engine.backend import backend_of
from pipeline.engine.contract import Engine
from pipeline.errors import UserError
from pipeline.triton_models.routing import offered

# Gives the engine that judges differences, and the type in which the other one computes.
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
    namespace = fresh_namespace()

    def ask(prompt: NamedPrompt, strategy: str) -> list[int]:
        asked = Ask(prompt.prompt, options.max_new_tokens, strategy, greedy.sampling, namespace)
        return without_end(measured_request(generate(url, asked), prompt.prompt_ids).output_ids, options.end_ids)

    references = {prompt.prompt_id: ask(prompt, strategies[0]) for prompt in prompts}
    pairs = [(prompt, strategy) for strategy in strategies[1:] for prompt in prompts]
    outputs = [("server", *pair, ask(*pair)) for pair in pairs]
    everything = [(prompt, strategies[0]) for prompt in prompts] + pairs
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        found = clients.map(lambda pair: ask(*pair), everything)
        outputs += [("server batch", *pair, tokens) for pair, tokens in zip(everything, found, strict=True)]
    comparisons = []
    for where, prompt, strategy, tokens in outputs:
        expected = references[prompt.prompt_id]
        if first_difference(expected, tokens) is None:
            comparison = Comparison(prompt.prompt_id, strategy, "greedy", where, "identical", len(tokens))
        else:
            engine, dtype = judge()
            request = make_request(greedy, prompt.prompt_ids)
            comparison = compare(
                engine, dtype, request, expected, tokens, prompt_id=prompt.prompt_id, strategy=strategy, where=where
            )
        comparisons.append(comparison)
        on_comparison(comparison)
    return comparisons


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

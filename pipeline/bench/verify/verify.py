"""Test of losslessness: token ids of every strategy against plain decoding, greedy and seeded, alone and in a batch.

In 32 bit and in the lean pass any difference is a fault. In 16 bit transformers rounds a pass over several tokens
differently from a pass over one, so two tokens with nearly equal scores may swap. After that the texts are unrelated,
so only the first difference of a pair is examined. It is a near-tie if the scores of both tokens are so close to the
best one that rounding can explain the difference (`near_tie_threshold`), and a fault otherwise.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request
from pipeline.config.schema import Dtype
from pipeline.decoding.noise import gumbel_noise
from pipeline.decoding.request import GenerationRequest, SamplingParams, as_token_ids
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import Engine, VerifyItem
from pipeline.engine.submission import Submission
from pipeline.engine.torch.lean.plan import read_plan

Verdict = Literal["identical", "near_tie", "different"]
# Returns the engine that computes the scores of differing tokens, and the `epsilon_of` value of the engine under test.
Judge = Callable[[], tuple[Engine, float]]

# Distance between 1 and the next larger number of a type in which passes may round differently.
EPSILON: dict[Dtype, float] = {"float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NEAR_TIE_ULPS = 4
SEEDED_TEMPERATURE = 0.8
# Suffix of a decoding's name for comparisons of the bits of logits instead of tokens.
LOGITS = "logits"
# Strategy name of comparisons over a batch of all strategies.
ALL_STRATEGIES = "all"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output compared with plain decoding. where: alone, batch, server or server batch. position: index in the
    output of the first difference. expected, found: the tokens there, None after the end of an output. gap: distance of
    the lower of the two scores from the best one, in logits. threshold: limit of a near-tie. Both are None if an output
    has ended. In comparisons of logits, `decoding` ends in "logits" and num_tokens counts rows."""

    prompt_id: str
    strategy: str
    decoding: str
    where: str
    verdict: Verdict
    num_tokens: int
    position: int | None = None
    expected: int | None = None
    found: int | None = None
    gap: float | None = None
    threshold: float | None = None


class RowHashes(dict[int, bytes]):
    """Hashes of the rows of logits from which a request's tokens were chosen, in the actual trees and batches, by the
    position of the token."""

    def add(self, position: int, row: FloatArray) -> None:
        """Store the hash of the bits of one row; 0.0 and -0.0 differ."""
        self[position] = hashlib.blake2b(np.asarray(row, np.float32).tobytes(), digest_size=16).digest()


def first_other_bits(
    expected: Mapping[int, bytes], found: Mapping[int, bytes], prompt_len: int
) -> tuple[int, int | None]:
    """Number of positions in both recordings, and the index of the first output token whose row differs, if any."""
    shared = sorted(expected.keys() & found.keys())
    different = next((position for position in shared if expected[position] != found[position]), None)
    return len(shared), None if different is None else different - prompt_len


def first_difference(expected: Sequence[int], found: Sequence[int]) -> tuple[int, int | None, int | None] | None:
    """Index of the first difference, and both tokens there, None after the end of an output; None if equal."""
    pairs = enumerate(zip_longest(expected, found))
    return next(((index, wanted, got) for index, (wanted, got) in pairs if wanted != got), None)


def epsilon_of(artifact: Artifact) -> float:
    """Relative rounding error by which two passes of an engine may differ; 0 in the lean pass, where a row has the same
    bits in any pass."""
    return EPSILON[artifact.resolved.dtype] if read_plan(artifact.engine_dir) is None else 0.0


def near_tie_threshold(epsilon: float, scores: FloatArray) -> float:
    """Largest gap in logits that rounding can explain: a few units in the last place of the largest logit. epsilon: see
    `epsilon_of`."""
    return NEAR_TIE_ULPS * epsilon * max(1.0, float(np.abs(scores).max()))


def scores_after(engine: Engine, request: GenerationRequest, context: IntArray) -> tuple[FloatArray, FloatArray]:
    """[vocab] logits after context [len] from a plain pass, and [vocab] scores whose argmax is the next token: with the
    noise of a seeded request, in units of logits. Applies temperature and seed only."""
    sequence = engine.open(context)
    try:
        logits = None
        while logits is None:
            pending = min(sequence.num_pending, engine.limits.max_num_tokens)
            (logits,) = engine.verify([VerifyItem(sequence, num_pending=pending)])
        row = logits.row(0).astype(np.float32)
    finally:
        engine.release(sequence)
    params = request.sampling
    if params.greedy:
        return row, row
    return row, row + np.float32(params.temperature) * gumbel_noise(params.seed, len(context), np.arange(len(row)))


def compare(
    judge: Judge,
    request: GenerationRequest,
    expected: Sequence[int],
    found: Sequence[int],
    prompt_id: str,
    strategy: str,
    where: str,
) -> Comparison:
    """Compare an output with the expected one. judge: called if they differ, for the scores of the two tokens."""
    decoding, difference = decoding_of(request), first_difference(expected, found)
    if difference is None:
        return Comparison(prompt_id, strategy, decoding, where, "identical", len(found))
    position, wanted, got = difference
    gap = threshold = None
    verdict: Verdict = "different"
    if wanted is not None and got is not None:
        engine, epsilon = judge()
        context = np.concatenate([request.prompt_ids, as_token_ids(list(expected[:position]))])
        logits, scores = scores_after(engine, request, context)
        gap = float(scores.max() - min(scores[wanted], scores[got]))
        threshold = near_tie_threshold(epsilon, logits)
        if gap < threshold:
            verdict = "near_tie"
    return Comparison(prompt_id, strategy, decoding, where, verdict, len(found), position, wanted, got, gap, threshold)


class _Asked(NamedTuple):
    """One request in process. rows: of its output, if the bits of logits are compared too."""

    prompt_id: str
    submission: Submission
    rows: RowHashes


def verify_in_process(
    engine: Engine,
    epsilon: float,
    reference: SchedulerContender,
    contenders: Sequence[SchedulerContender],
    prompts: Sequence[NamedPrompt],
    options: MeasureOptions,
    on_comparison: Callable[[Comparison], None] = lambda comparison: None,
    logits: bool = False,
) -> tuple[list[Comparison], dict[tuple[str, str], list[int]]]:
    """Return all comparisons in process, and the reference outputs by (prompt id, decoding).

    Draft sources keep their learned state between prompts. Each prompt runs a second time in a batch with all prompts
    and strategies, so that drafts come from outputs of the same prompt too. epsilon: see `epsilon_of`. logits: whether
    the bits of logits are compared too."""
    comparisons: list[Comparison] = []
    references: dict[tuple[str, str], list[int]] = {}

    def asked(contender: SchedulerContender, prompt: NamedPrompt, decoding: MeasureOptions) -> _Asked:
        submission, rows = contender.submission(make_request(decoding, prompt.prompt_ids)), RowHashes()
        return _Asked(prompt.prompt_id, replace(submission, on_row=rows.add) if logits else submission, rows)

    def outputs(contender: SchedulerContender, requests: Sequence[_Asked]) -> list[list[int]]:
        engine.forget_cached()
        return [result.output_ids for result in contender.scheduler.run([each.submission for each in requests])]

    def judge(contender: SchedulerContender, requests: Sequence[_Asked], where: str) -> None:
        for each, found in zip(requests, outputs(contender, requests), strict=True):
            engine.forget_cached()  # the scores must not use KV that a strategy has computed
            request = each.submission.request
            expected, labels = references[each.prompt_id, decoding_of(request)], (each.submission.strategy, where)
            report(compare(lambda: (engine, epsilon), request, expected, found, each.prompt_id, *labels))

    def report(comparison: Comparison) -> None:
        comparisons.append(comparison)
        on_comparison(comparison)

    for each_options in decodings(options):
        plain = [asked(reference, prompt, each_options) for prompt in prompts]
        for each in plain:
            (references[each.prompt_id, decoding_of(each.submission.request)],) = outputs(reference, [each])
        for contender in contenders:
            for expected, prompt in zip(plain, prompts, strict=True):
                alone = asked(contender, prompt, each_options)
                judge(contender, [alone], "alone")
                if logits:
                    report(compare_logits(expected, [alone], contender.name, "alone"))
        mixed = [asked(each, prompt, each_options) for prompt in prompts for each in (reference, *contenders)]
        judge(contenders[-1] if contenders else reference, mixed, "batch")
        if logits:
            for expected in plain:
                same = [each for each in mixed if each.prompt_id == expected.prompt_id]
                report(compare_logits(expected, same, ALL_STRATEGIES, "batch"))
    return comparisons, references


def compare_logits(expected: _Asked, found: Sequence[_Asked], strategy: str, where: str) -> Comparison:
    """Compare the rows of a prompt's requests, by position, with those of plain decoding."""
    request = expected.submission.request
    compared = [first_other_bits(expected.rows, each.rows, len(request.prompt_ids)) for each in found]
    position = min((index for _, index in compared if index is not None), default=None)
    verdict: Verdict = "identical" if position is None else "different"
    num_rows = sum(count for count, _ in compared)
    assert num_rows, "every output has a first token, chosen from a row of logits"
    decoding = f"{decoding_of(request)} {LOGITS}"
    return Comparison(expected.prompt_id, strategy, decoding, where, verdict, num_rows, position)


def decoding_of(request: GenerationRequest) -> str:
    return "greedy" if request.sampling.greedy else "seeded"


def decodings(options: MeasureOptions) -> tuple[MeasureOptions, MeasureOptions]:
    """The two verified decodings: greedy, and sampled with the options' seed."""
    seeded = SamplingParams(temperature=SEEDED_TEMPERATURE, seed=options.sampling.seed)
    return replace(options, sampling=SamplingParams()), replace(options, sampling=seeded)


def is_lossless(comparisons: Sequence[Comparison]) -> bool:
    """Whether no difference is a fault."""
    return all(comparison.verdict != "different" for comparison in comparisons)


def verdict_table(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """Number of outputs, tokens and verdicts by strategy, decoding and `where` (see `Comparison`)."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.strategy, comparison.decoding, comparison.where), []).append(comparison)

    def row(strategy: str, decoding: str, where: str, group: Sequence[Comparison]) -> dict[str, str]:
        verdicts = Counter(comparison.verdict for comparison in group)
        return {
            "strategy": strategy,
            "decoding": decoding,
            "where": where,
            "outputs": str(len(group)),
            "tokens": str(sum(comparison.num_tokens for comparison in group)),
            "identical": str(verdicts["identical"]),
            "near-ties": str(verdicts["near_tie"]),
            "different": str(verdicts["different"]),
        }

    return [row(*key, group) for key, group in groups.items()]


def verdict_sentence(comparison: Comparison) -> str:
    """One sentence: the position of a difference and the reason of its verdict."""
    c = comparison
    output = f"{c.prompt_id}, {c.strategy}, {c.decoding}, {c.where}"
    if c.decoding.endswith(LOGITS):
        return f"{output}: the logits of output {c.position} have other bits; a fault."
    if c.position is None:
        return f"{output}: the tokens are equal, the text is not; a fault."
    found = "the end" if c.found is None else f"token {c.found}"
    expected = "the end" if c.expected is None else f"token {c.expected}"
    sentence = f"{output}: output {c.position} is {found} instead of {expected}"
    if c.gap is None or c.threshold is None:
        return f"{sentence}; a fault."
    kind = "a near-tie" if c.verdict == "near_tie" else "a fault"
    return f"{sentence}; their scores lie within {c.gap:.3g} logits, rounding explains up to {c.threshold:.3g}: {kind}."

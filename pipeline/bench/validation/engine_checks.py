"""Checks of the torch engine on a device, without a server. They need the network only for the model's checkpoint.

exactness   logits of trees against those of paths, and every strategy against plain decoding, on a random tiny model
curves      pass times of random-weight models of large shapes against the time to read their weights once
reference   greedy tokens of a real model against transformers with the checkpoint's weights
drafts      tokens and speed of every strategy against plain decoding with a real model
lookahead   acceptance of W, N, G with the real model, and the resulting speed on the shapes of `curves`
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.bench.contenders.in_process import BASELINE, InProcess, choose_strategies, open_in_process
from pipeline.bench.data.workload import DEFAULT_PROMPTS, WorkloadRow, first_prompts, load_workload
from pipeline.bench.measure import MeasureOptions, make_request, measure
from pipeline.bench.report.results import OVERALL
from pipeline.bench.report.summary import summarize
from pipeline.bench.tune import LOOKAHEADS, candidates, tune
from pipeline.bench.validation.shapes import SHAPES, TINY, bandwidth, bytes_read, random_model
from pipeline.bench.verify.reference import agreement, disagreement_sentence, load_reference
from pipeline.bench.verify.verify import (
    EPSILON,
    NEAR_TIE_ULPS,
    verdict_sentence,
    verdict_table,
    verify_in_process,
)
from pipeline.config.folders import Folders
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import Device
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.tree import chain, path_to, tree_from_lists
from pipeline.engine.backend import Note
from pipeline.engine.build import build_engine
from pipeline.engine.contract import Engine, EngineLimits, VerifyItem
from pipeline.engine.torch.load_transformers import engine_over
from pipeline.tuning.cost_curve import CostGrid, critical_decoding_length
from pipeline.tuning.cost_curve import measure as measure_curve

Values = dict[str, Any]
GRID = CostGrid((1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 4, 16), (512,), max_pass_tokens=1024)
# Differences that rounding can explain. The logits of the random tiny model are below 1.
_LARGEST_GAPS = {"float32": 1e-3, "bfloat16": NEAR_TIE_ULPS * EPSILON["bfloat16"]}
# As above, for the logits of a real model in float32.
_REFERENCE_GAP = 0.01
_LIMITS = EngineLimits(max_batch_size=16, max_seq_len=1024, max_num_tokens=1024, max_draft_tokens=255, vocab_size=0)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check. model: name of a model config with an available checkpoint. shapes: keys of `SHAPES`. num_prompts,
    max_new_tokens: size of the generations with the model."""

    device: Device
    model: str
    shapes: tuple[str, ...]
    num_prompts: int
    max_new_tokens: int


def checks(options: CheckOptions, folders: Folders, note: Note) -> Iterator[tuple[str, Callable[[], Values]]]:
    """Yield name and function of each check, in order. Later ones use results of earlier ones."""
    curves: dict[str, CostCurve] = {}
    opened: list[InProcess] = []

    def model() -> InProcess:
        if not opened:
            opened.append(_open_model(options.model, options.device, folders, note))
        return opened[0]

    yield "exactness", partial(exactness, options.device, folders, note)
    for shape in options.shapes:
        yield f"curve {shape}", partial(curve, shape, options.device, curves)
    yield "reference", lambda: reference(model(), options, folders)
    yield "drafts", lambda: drafts(model(), options)
    yield "lookahead", lambda: lookahead_sizes(model(), options, curves)


def run_checks(
    options: CheckOptions, folders: Folders, note: Note, on_result: Callable[[list[Values]], None]
) -> list[Values]:
    """Run all checks and return their results. A failed check is recorded with its error. on_result: called after each
    check with all results so far."""
    results: list[Values] = []
    for name, check in checks(options, folders, note):
        note(name)
        started = time.perf_counter()
        result: Values = {"name": name, "passed": True, "error": ""}
        try:
            result |= check()
        except Exception as error:
            result |= {"passed": False, "error": f"{type(error).__name__}: {error}"}
        result["seconds"] = round(time.perf_counter() - started, 1)
        gc.collect()  # frees the memory of a model for the next one
        if options.device == "cuda":
            torch.cuda.empty_cache()
        results.append(result)
        note(f"  {'passed' if result['passed'] else 'FAILED: ' + result['error']} ({result['seconds']} s)")
        on_result(results)
    return results


def exactness(device: Device, folders: Folders, note: Note) -> Values:
    """Compare logits of tree nodes with those of their paths in float32 and bfloat16, and all strategies with plain
    decoding, on the tiny random model."""
    gaps = {name: _tree_gap(device, getattr(torch, name)) for name in _LARGEST_GAPS}
    opened = _open_model("tiny-random-llama", device, folders, note)
    verdicts, error = _verify(opened, load_workload(DEFAULT_PROMPTS, 3), 32)
    # A pass over several rows may sum in another order than a pass over one.
    faults = [
        f"logits in {name} differ by {gap:.2g} between a tree and its paths, which rounding does not explain"
        for name, gap in gaps.items()
        if gap > _LARGEST_GAPS[name]
    ]
    faults += [error] if error else []
    return {
        "passed": not faults,
        "error": "; ".join(faults),
        "largest_logit_gap": gaps,
        "verdicts": verdicts,
    }


def curve(shape: str, device: Device, curves: dict[str, CostCurve]) -> Values:
    """Compare pass times of a random-weight model with the time to read its weights once, and add them to `curves`."""
    config = SHAPES[shape]()
    model = random_model(config, device, torch.float32 if device == "cpu" else torch.bfloat16)
    num_bytes = bytes_read(model)
    engine = engine_over(model, replace(_LIMITS, vocab_size=config.vocab_size), num_slots=_LIMITS.max_batch_size)
    floor = num_bytes / bandwidth(device)
    points = measure_curve(engine, GRID)
    curves[shape] = CostCurve(tuple(points))
    rows = [_curve_row(point, points, floor) for point in points]
    summary = {
        "weight_gb": num_bytes / 1e9,
        "floor_ms": floor * 1e3,
        "first_pass_over_floor": rows[0]["ms"] / (floor * 1e3),
        "critical_decoding_length": critical_decoding_length(points),
    }
    return {"summary": summary, "points": rows}


def reference(opened: InProcess, options: CheckOptions, folders: Folders) -> Values:
    """Compare greedy tokens of plain decoding with those of transformers and the checkpoint's weights, in float32."""
    settings, plain = _settings(opened, options.max_new_tokens), opened.contender(BASELINE)
    prompts = first_prompts(opened.codec, load_workload(DEFAULT_PROMPTS, options.num_prompts), settings.raw)
    outputs = [
        (each.prompt_ids, plain.generate(make_request(settings, each.prompt_ids), each.prompt).output_ids)
        for each in prompts
    ]
    share = agreement(load_reference(opened.artifact.resolved, folders), outputs, _REFERENCE_GAP)
    return {"passed": share == 1.0, "error": "" if share == 1.0 else disagreement_sentence(share), "agreement": share}


def drafts(opened: InProcess, options: CheckOptions) -> Values:
    """Compare tokens and speed of every strategy with plain decoding."""
    rows = load_workload(DEFAULT_PROMPTS, options.num_prompts)
    verdicts, error = _verify(opened, rows, options.max_new_tokens)
    contenders = _contenders(opened)
    records = measure(contenders, rows, opened.codec, replace(_settings(opened, options.max_new_tokens), repeats=2))
    speeds = [
        {
            "strategy": row.strategy,
            "acceptance_length": row.acceptance_length,
            "tokens_per_s": row.tokens_per_s,
            "speedup": row.speedup,
            "identical": f"{row.num_identical}/{row.num_requests}",
        }
        for row in summarize(records, contenders[0].name)
        if row.task == OVERALL
    ]
    return {"passed": not error, "error": error, "verdicts": verdicts, "speeds": speeds}


def lookahead_sizes(opened: InProcess, options: CheckOptions, curves: Mapping[str, CostCurve]) -> Values:
    """Measure acceptance length and speed of each W, N, G with the model, and compute the speedup for each shape from
    the acceptance length and the shape's pass times."""
    chosen = [each for each in candidates(opened.artifact.resolved) if each.lookahead is not None]
    rows = load_workload(DEFAULT_PROMPTS, options.num_prompts)
    found = {row.strategy: row for row in tune(opened, chosen, rows, _settings(opened, options.max_new_tokens))}
    table = []
    for each in chosen:
        assert each.lookahead is not None, "only candidates with a window are chosen"
        row = found[each.name]
        draft_len, length = each.lookahead.max_draft_len, row.acceptance_length
        entry: Values = {"sizes": each.name, "draft_len": draft_len, "acceptance_length": length}
        entry["speedup here"] = row.speedup
        for shape, costs in curves.items():
            times = costs.seconds_up_to(draft_len + 1, 1, GRID.context_lengths[0])
            entry[f"speedup at {shape}"] = length * float(times[1] / times[draft_len + 1])
        table.append(entry)
    return {"table": table, "left_out": len(LOOKAHEADS) - len(chosen)}


def _curve_row(point: CostPoint, points: Sequence[CostPoint], floor: float) -> Values:
    alone = min(other.seconds for other in points if other.batch_size == point.batch_size)
    return {
        "batch_size": point.batch_size,
        "num_tokens": point.num_tokens,
        "ms": point.seconds * 1e3,
        "over_floor": point.seconds / floor,
        "over_least": point.seconds / alone,
    }


def _open_model(name: str, device: Device, folders: Folders, note: Note) -> InProcess:
    """Build and load a model in float32, in which strategies must agree in every token."""
    overrides = ("backend=torch", f"device={device}", "model.dtype=float32", "model.gpu_dtype=float32")
    resolved = resolve_config(name, "latency", (*overrides, "drafting.planner=fixed"), where=folders)
    return open_in_process(build_engine(resolved, folders, note=note).artifact)


def _settings(opened: InProcess, max_new_tokens: int) -> MeasureOptions:
    return MeasureOptions(max_new_tokens, opened.end_ids, raw=not opened.artifact.resolved.model.chat_template)


def _contenders(opened: InProcess) -> list[SchedulerContender]:
    """All strategies, the baseline first."""
    return [opened.contender(name) for name in choose_strategies(opened.artifact.resolved.profile, None)]


def _verify(opened: InProcess, rows: Sequence[WorkloadRow], max_new_tokens: int) -> tuple[list[Values], str]:
    """The table of verdicts, and the differences as a text; empty without one."""
    (reference, *contenders), options = _contenders(opened), _settings(opened, max_new_tokens)
    prompts = first_prompts(opened.codec, rows, options.raw)
    found, _ = verify_in_process(opened.engine, EPSILON["float32"], reference, contenders, prompts, options)
    different = [comparison for comparison in found if comparison.verdict == "different"]
    error = f"{len(different)} of {len(found)} outputs differ; {verdict_sentence(different[0])}" if different else ""
    return [*verdict_table(found)], error


def _tree_gap(device: Device, dtype: torch.dtype) -> float:
    """Largest difference between logits of a random tree's nodes and those of each path by itself. Raises RuntimeError
    if logits are not finite."""
    config = SHAPES[TINY]()
    engine = engine_over(
        random_model(config, device, dtype), replace(_LIMITS, vocab_size=config.vocab_size), num_slots=2
    )
    random = np.random.default_rng(0)
    prompt = random.integers(0, config.vocab_size, 40).astype(np.int32)
    tokens = random.integers(0, config.vocab_size, 24).tolist()
    tree = tree_from_lists(tokens, [int(random.integers(-1, node)) for node in range(24)])
    gap = 0.0
    whole = _logits(engine, prompt, tree)
    for node in range(len(tree)):
        path = path_to(tree, node)
        alone = _logits(engine, prompt, chain([tokens[each] for each in path]))
        gap = max(gap, float(np.abs(whole[node + 1] - alone[-1]).max()))
    return gap


def _logits(engine: Engine, prompt: Any, tree: Any) -> list[Any]:
    sequence = engine.open(prompt, reuse=False)
    try:
        (logits,) = engine.verify([VerifyItem(sequence, tree)])
        assert logits is not None, "the whole prompt is computed in one pass"
        rows = [logits.row(index) for index in range(len(tree) + 1)]
    finally:
        engine.release(sequence)
    if not np.isfinite(rows).all():
        raise RuntimeError("the engine's logits are not finite")
    return rows

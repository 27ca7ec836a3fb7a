"""Builds an engine, measures its cost curve for the draft planner, and computes the first rows of token recycling."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from jinja2 import TemplateError

from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS, FirstRows
from pipeline.decoding.planning.cost import CostPoint
from pipeline.decoding.request import as_token_ids
from pipeline.decoding.tree import IntArray
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import Note, backend_of
from pipeline.engine.build import BuildResult, build_engine
from pipeline.engine.compilation import ensure_compiled
from pipeline.engine.contract import Engine
from pipeline.engine.cost_curve import CostCurveFile, load_cost_curve, save_cost_curve
from pipeline.engine.first_rows import StoredRows, compute_first_rows, load_first_rows, save_first_rows
from pipeline.engine.machine_load import LoadMeter, machine_load
from pipeline.errors import BuildError
from pipeline.tuning.cost_curve import CostGrid, grid_for, measure

# Time limit of the measurement during a build, without the last pass and the loading of the engine.
MAX_SECONDS = 12.0
# Maximum sequence length during a measurement: the longest context of a grid and the tokens that its passes append.
MEASURED_SEQ_LEN = 1280
# Number of first rows for token recycling, and the time limit of computing them, without the last pass and the loading
# of the engine. 8192 of 49152 tokens gave four fifths of the gain of all tokens.
MOST_ROWS = 8192
MAX_ROW_SECONDS = 20.0
LOADING = "loading the engine, to measure it"
COMPUTING = "computing draft candidates after frequent tokens, for token recycling"
MEASURING = "measuring pass times, for the draft planner"


def planned_engine(
    resolved: ResolvedConfig,
    folders: Folders,
    *,
    force: bool = False,
    retake: bool = False,
    note: Note = lambda text: None,
) -> BuildResult:
    """Run `build_engine`, compile the loops, and store the missing cost curve and first rows, if the profile needs
    them. retake: also compute rows that exceeded the time limit, and repeat a measurement on a busy machine if other
    programs now use less than half as much. Raises CheckpointError and BuildError."""
    result = build_engine(resolved, folders, force=force, note=note)
    artifact = result.artifact
    ensure_compiled(note)  # otherwise each model of a server would compile them
    known, wants_curve = _rows_to_continue(artifact, retake), needs_cost_curve(artifact, retake)
    if known is not None or wants_curve:
        note(LOADING)
        grid = grid_for(resolved.device, fine=False)
        with _measured(artifact, grid, grid.batch_sizes if wants_curve else [1]) as engine:
            if known is not None:
                _compute_and_save_rows(artifact, engine, known, note)
            if wants_curve:  # coarse; `lookahead bench --cost-curve` replaces it by a finer one
                _measure_and_save(artifact, engine, grid, MAX_SECONDS, note)
    return result


def needs_cost_curve(artifact: Artifact, retake: bool = False) -> bool:
    """Whether `plans_by_cost` holds and there is no readable curve of these weights on this machine. retake: ignore a
    curve that was measured while the machine was more than twice as busy as now."""
    if not plans_by_cost(artifact.resolved):
        return False
    stored = load_cost_curve(artifact)
    return stored is None or (retake and stored.is_disturbed and machine_load().others < stored.others / 2)


def _rows_to_continue(artifact: Artifact, retake: bool) -> FirstRows | None:
    """The stored first rows if more must be computed, else None. Profiles with token recycling on an engine in process
    need them. retake: continue rows that exceeded the time limit."""
    resolved = artifact.resolved
    drafts = resolved.profile.engine.max_draft_tokens > 0
    recycles = drafts and any(source.kind == "recycling" for source in resolved.profile.drafting.sources)
    if not recycles or not backend_of(resolved.backend).in_process:
        return None
    stored = load_first_rows(artifact)
    if stored is None:
        return NO_FIRST_ROWS
    return stored.rows if retake and len(stored.rows.ids) < min(MOST_ROWS, stored.vocab_size) else None


def _compute_and_save_rows(artifact: Artifact, engine: Engine, known: FirstRows, note: Note) -> None:
    """Extend the known rows within `MOST_ROWS` and `MAX_ROW_SECONDS`, and store them."""
    note(COMPUTING)
    rows = compute_first_rows(engine, opening_of(artifact, engine.limits.vocab_size), known, MOST_ROWS, MAX_ROW_SECONDS)
    save_first_rows(artifact, StoredRows(rows, engine.limits.vocab_size))
    note(f"{COMPUTING}: {len(rows.ids)} tokens done")


def plans_by_cost(resolved: ResolvedConfig) -> bool:
    """Whether drafts are planned by measured pass times of an engine in process."""
    return backend_of(resolved.backend).in_process and resolved.profile.drafting.planner == "adaptive"


def stored_cost_curve(artifact: Artifact) -> CostCurveFile | None:
    """The stored cost curve, if drafts are planned by one, else None."""
    return load_cost_curve(artifact) if plans_by_cost(artifact.resolved) else None


def measure_cost_curve(artifact: Artifact, note: Note) -> CostCurveFile:
    """Measure the passes of an artifact on a fine grid and store the curve, with the load of the machine. The limits of
    its profile do not apply, so that the curve is valid for all profiles."""
    note(LOADING)
    grid = grid_for(artifact.resolved.device, fine=True)
    with _measured(artifact, grid, grid.batch_sizes) as engine:
        return _measure_and_save(artifact, engine, grid, math.inf, note)


def _measure_and_save(
    artifact: Artifact, engine: Engine, grid: CostGrid, max_seconds: float, note: Note
) -> CostCurveFile:
    """Measure a grid and store its curve. Notes each batch size whose passes are being measured."""
    done: set[int] = set()

    def on_point(point: CostPoint) -> None:
        if point.batch_size not in done:
            done.add(point.batch_size)
            note(f"{MEASURING}: passes of {point.batch_size} sequence{'s' if point.batch_size > 1 else ''} done")

    note(MEASURING)
    meter = LoadMeter()
    points = measure(engine, grid, max_seconds=max_seconds, on_point=on_point)
    return save_cost_curve(artifact, tuple(points), meter.read())


@contextmanager
def _measured(artifact: Artifact, grid: CostGrid, batch_sizes: Sequence[int]) -> Iterator[Engine]:
    """Load the engine with limits for a grid's passes, and the largest of the batch sizes whose KV cache fits into
    memory. Its further processes, if any, end with the block. Raises BuildError if the artifact is removed
    meanwhile."""
    from pipeline.engine.parallel import ParallelEngine

    engine: Engine | None = None
    try:
        engine = _load(artifact, grid, sorted(batch_sizes, reverse=True))
        yield engine
    except OSError as error:
        if artifact.engine_dir.is_dir() and artifact.tokenizer_dir.is_dir():
            raise
        raise BuildError(f"{artifact.folder} was removed during a measurement. Run the command again.") from error
    finally:
        if isinstance(engine, ParallelEngine):
            engine.close()


def _load(artifact: Artifact, grid: CostGrid, batch_sizes: Sequence[int]) -> Engine:
    """batch_sizes: descending."""
    try:
        limited = with_measured_limits(artifact, grid, batch_sizes[0])
        return backend_of(artifact.resolved.backend).load_engine(limited)
    except BuildError:
        if len(batch_sizes) == 1:
            raise
        return _load(artifact, grid, batch_sizes[1:])


def with_measured_limits(artifact: Artifact, grid: CostGrid, batch_size: int) -> Artifact:
    """The artifact with limits for the grid's passes of up to batch_size sequences."""
    resolved = artifact.resolved
    limited = resolved.with_settings(
        "engine",
        max_batch_size=batch_size,
        max_seq_len=min(MEASURED_SEQ_LEN, resolved.model.max_position_embeddings),
        max_num_tokens=grid.max_pass_tokens,
        max_draft_tokens=max(grid.tokens_per_sequence),
    )
    return replace(artifact, resolved=limited)


def opening_of(artifact: Artifact, vocab_size: int) -> IntArray:
    """[len >= 1] token ids that the chat template adds before the model's answer; the model's BOS token without a
    template, or if it refuses or drops an empty message. Raises BuildError if the tokenizer is not that of the
    model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(artifact.tokenizer_dir)
    if tokenizer.chat_template:
        with suppress(ValueError, TemplateError):
            ids = tokenizer.encode(_generation_prompt(tokenizer), add_special_tokens=False)
            if outside := [token for token in ids if token >= vocab_size]:
                raise BuildError(
                    f"The chat template of {artifact.manifest.model} has token {outside[0]} "
                    f"({tokenizer.convert_ids_to_tokens(outside[0])!r}), and the model's vocabulary is 0 .. "
                    f"{vocab_size - 1}. Put the tokenizer that belongs to the model into the checkpoint."
                )
            bos = tokenizer.bos_token_id
            if bos is not None and bos < vocab_size and ids[:1] != [bos]:
                ids = [bos, *ids]
            if ids:
                return as_token_ids(ids)
    first = json.loads((artifact.engine_dir / "config.json").read_text(encoding="utf-8")).get("bos_token_id")
    return as_token_ids([first if isinstance(first, int) and 0 <= first < vocab_size else 0])


def _generation_prompt(tokenizer: Any) -> str:
    """The text that a template adds before the model's answer, or the whole conversation if that is empty."""
    message = [{"role": "user", "content": ""}]
    before, whole = (
        tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=adds) for adds in (False, True)
    )
    return str(whole).removeprefix(before) or str(whole)

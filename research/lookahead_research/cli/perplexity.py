"""The command perplexity, which measures the loss of quality by quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import options as shared
from pipeline.cli import output


def perplexity(
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    data: shared.Data = None,
    limit: Annotated[int | None, shared.limit_to("rows")] = None,
    json_path: Annotated[Path | None, shared.output_file("--json", what="Output file of scores")] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="File of another engine's scores for the same texts.")
    ] = None,
) -> None:
    """Measure the perplexity of an engine over the prompts of a data file as plain texts."""
    from lookahead_research.perplexity import Scores, agreement, load_scores, require_same_texts, score_texts
    from pipeline.bench.contenders.in_process import open_in_process
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.report.results import require_writable, save_json
    from pipeline.config.folders import folders
    from pipeline.engine.build import build_engine
    from pipeline.errors import UserError

    if json_path is not None:
        require_writable(json_path, data, against)
    others = None if against is None else load_scores(against)
    rows = load_workload(data or DEFAULT_PROMPTS, limit)
    wanted = shared.resolve(model, profile, overrides)
    shared.require_engine_of_server(wanted)
    with output.working("opening the engine") as note:
        opened = open_in_process(build_engine(wanted, folders(), note=note).artifact)
    texts = [(row.row_id, opened.codec.encode(" ".join((row.system, *row.turns)).strip())) for row in rows]
    if not (texts := [(text_id, tokens) for text_id, tokens in texts if len(tokens) > 1]):
        raise UserError("No text has two tokens, so nothing can be predicted; give longer ones with --data.")
    if others is not None:
        require_same_texts(texts, others, opened.engine.limits.max_seq_len)
    with output.steps("scoring", len(texts)) as step:
        scored = score_texts(opened.engine, texts, step)
    resolved = opened.artifact.resolved
    scores = Scores(
        model=resolved.model.name,
        quantization=resolved.profile.engine.quantization,
        dtype=resolved.dtype,
        texts=tuple(scored),
    )
    if json_path is not None:
        save_json(json_path, scores)
    columns = ["model", "dtype", "quantization", "texts", "tokens", "perplexity"]
    lines = [scores] if others is None else [others, scores]
    output.table(
        columns,
        [(s.model, s.dtype, s.quantization, len(s.texts), s.num_tokens, f"{s.perplexity:.3f}") for s in lines],
    )
    if others is not None:
        ratio = scores.perplexity / others.perplexity
        output.say(
            f"{ratio:.4f} times the other engine's perplexity; the same most probable token at "
            f"{100 * agreement(scores, others):.2f}% of all positions"
        )

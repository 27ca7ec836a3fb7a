"""The command `tune`, which searches the best settings for this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.folders import folders

if TYPE_CHECKING:
    from pipeline.bench.report.results import SummaryRow
    from pipeline.config.schema import LookaheadConfig, ResolvedConfig


def tune(
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    data: shared.Data = None,
    limit: Annotated[int, shared.limit_to("prompts")] = 6,
    max_new_tokens: shared.MaxNewTokens = 96,
    as_json: shared.Json = False,
) -> None:
    """Measure pass times, draft budgets and W, N, G against plain decoding, and print the settings to write."""
    resolved = shared.resolve(model, profile, overrides)
    shared.require_in_process(resolved, "tune")
    shared.require_engine_of_server(resolved)

    from dataclasses import asdict

    from pipeline.bench.bench import check_lengths
    from pipeline.bench.contenders.in_process import codec_of, open_in_process
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.tune import candidates, winners
    from pipeline.bench.tune import tune as measure_candidates
    from pipeline.engine.build import build_engine
    from pipeline.tuning.cost_curve import critical_decoding_length
    from pipeline.tuning.planned_engine import measure_cost_curve

    rows = load_workload(data or DEFAULT_PROMPTS, limit)
    chosen = candidates(resolved)
    with output.working("preparing the engine") as note:
        artifact = build_engine(resolved, folders(), note=note).artifact
        codec = codec_of(artifact)
        options = MeasureOptions(
            max_new_tokens=max_new_tokens, end_ids=codec.end_ids, warmth="warm", raw=not resolved.model.chat_template
        )
        check_lengths(codec, rows, resolved.profile.engine.max_seq_len - 1, options)
        stored = measure_cost_curve(artifact, note)
    output.note(f"cost curve: {stored.to_text()}")
    critical_len = critical_decoding_length(stored.curve.points)
    opened = open_in_process(artifact)
    with output.steps("measuring", len(rows) * (len(chosen) + 1)) as step:
        summary = measure_candidates(
            opened, chosen, rows, options, lambda record: step(f"{record.id} {record.strategy}")
        )
    if any(row.num_identical < row.num_requests for row in summary):
        output.note("some outputs differ; `lookahead verify` shows whether rounding in 16 bit explains that")
    max_draft_tokens, lookahead = winners(chosen, summary)
    if as_json:
        output.print_json(
            {
                "cost_curve": [asdict(point) for point in stored.points],
                "critical_decoding_length": critical_len,
                "summary": [row.model_dump() for row in summary],
                "max_draft_tokens": max_draft_tokens,
                "lookahead": None if lookahead is None else lookahead.model_dump(),
            }
        )
    else:
        _show(summary, resolved, critical_len, max_draft_tokens, lookahead)


def _show(
    summary: list[SummaryRow],
    resolved: ResolvedConfig,
    critical_len: int,
    max_draft_tokens: int | None,
    lookahead: LookaheadConfig | None,
) -> None:
    import yaml

    from pipeline.bench.report.report import interval_of

    output.records(
        {
            "setting": row.strategy,
            "acceptance length": f"{row.acceptance_length:.2f}",
            "tokens/s": f"{row.tokens_per_s:.1f}",
            "speedup against none": f"{row.speedup:.2f}",
            "95% interval": interval_of(row),
        }
        for row in summary
    )
    output.say(f"Critical decoding length: {critical_len} draft tokens make a pass at most a tenth slower.")
    name = resolved.profile.name
    if max_draft_tokens is None:
        output.say(
            "No draft budget was faster than plain decoding beyond its interval. Measure more prompts with --limit, or "
            f"set drafting.strategy of profile {name} to none."
        )
    else:
        output.say(f"Profile {name}: set drafting.max_draft_tokens to {max_draft_tokens}.")
    if lookahead is None:
        output.say(
            "No window was faster than plain decoding beyond its interval; leave `window` out of drafting.sources."
        )
    else:
        flow = yaml.safe_dump(lookahead.model_dump(), default_flow_style=True, sort_keys=False, width=1000).strip()
        output.say(f"Model {resolved.model.name}: set lookahead.{name} to {flow}")

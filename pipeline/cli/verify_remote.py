"""`lookahead verify` for an engine that runs in a server only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pipeline.cli import output
from pipeline.errors import ServerError

if TYPE_CHECKING:
    from pipeline.bench.verify import Comparison
    from pipeline.bench.workload import WorkloadRow
    from pipeline.config.schema import Dtype
    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine


def compare_through_server(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str] | None,
    rows: Sequence[WorkloadRow],
    max_new_tokens: int,
    raw: bool,
) -> list[Comparison]:
    """All comparisons. Raises ServerError if no server was found."""
    from pipeline.bench.in_process import codec_of
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.verify_remote import judging_config, remote_strategies, verify_remote
    from pipeline.bench.workload import first_prompts

    if url is None:
        raise ServerError(
            "This engine runs in a server only, and none of it is running. Start it with `lookahead serve "
            f"--model {artifact.manifest.model} --profile {artifact.manifest.profile} --background`."
        )
    chosen = remote_strategies(artifact.resolved, strategies)
    codec = codec_of(artifact)
    prompts = first_prompts(codec.tokenizer, rows, raw or not artifact.resolved.model.chat_template)
    options = MeasureOptions(max_new_tokens=max_new_tokens, end_ids=codec.end_ids)

    @cache
    def judge() -> tuple[Engine, Dtype]:
        import torch

        from pipeline.config.places import places
        from pipeline.engine.build import build_engine
        from pipeline.engine.torch.load import load_engine

        output.note("two outputs differ: looking at the scores with our torch engine")
        resolved = judging_config(artifact.resolved, torch.cuda.is_available())
        return load_engine(build_engine(resolved, places(), note=output.note).artifact), artifact.resolved.dtype

    output.note(f"server: {url}; greedy outputs only, as this backend's sampling depends on the steps of a request")
    with output.progress() as bar:
        num_pairs = len(prompts) * (2 * len(chosen) - 1)
        task = bar.add_task("comparing", total=num_pairs)
        return verify_remote(url, judge, chosen, prompts, options, lambda comparison: bar.update(task, advance=1))

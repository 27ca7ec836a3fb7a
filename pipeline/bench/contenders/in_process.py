"""Opens an artifact in this process: one engine, and per strategy a contender with its own scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.bench.data.workload import output_text
from pipeline.config.schema.profile import ProfileConfig
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.strategy import STRATEGIES, source_names
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.contract import Engine
from pipeline.engine.scheduler_factory import create_compiler, create_planner, create_scheduler
from pipeline.errors import UserError
from pipeline.triton_models.text_codec import TextCodec, load_codec

BASELINE = "none"


@dataclass(slots=True)
class InProcess:
    """A loaded engine, its tokenizer, and a compiler of guides, which all contenders share."""

    artifact: Artifact
    engine: Engine
    codec: TextCodec
    compiler: Compiler

    @property
    def end_ids(self) -> frozenset[int]:
        return self.codec.end_ids

    def decode(self, output_ids: Sequence[int]) -> str:
        return output_text(self.codec, output_ids)

    def contender(self, strategy: str, always_drafts: bool = False) -> SchedulerContender:
        """A strategy with its own draft sources. Its planner keeps the measured time of drafting, which is no learned
        text. always_drafts: see `AdaptivePlanner`."""
        planner = create_planner(self.artifact, always_drafts)
        return SchedulerContender(
            strategy,
            lambda: create_scheduler(self.artifact, self.engine, compiler=self.compiler, planner=planner),
        )


def open_in_process(artifact: Artifact) -> InProcess:
    """Load engine and tokenizer. Raises UserError if the artifact is for a backend that does not run in process."""
    engine = backend_of(artifact.resolved.backend).load_engine(artifact)
    return InProcess(artifact, engine, codec_of(artifact), create_compiler(artifact, engine))


def codec_of(artifact: Artifact) -> TextCodec:
    """Tokenizer and end tokens, the same as in a server."""
    return load_codec(artifact.tokenizer_dir, artifact.engine_dir)


def choose_strategies(profile: ProfileConfig, wanted: Sequence[str] | None) -> list[str]:
    """Return the strategies to measure, the baseline first. wanted: their names, or None for all with draft sources in
    the profile. Raises UserError for a strategy without draft sources."""
    available = [source.kind for source in profile.drafting.sources]
    drafting = [name for name in STRATEGIES if name not in (BASELINE, "auto") and source_names(name, available)]
    if wanted is None:
        return [BASELINE, *drafting]
    for name in wanted:
        if name != BASELINE and not source_names(name, available):
            raise UserError(
                f"Strategy {name!r} has no draft source in profile {profile.name}, so it would be plain decoding; "
                f"add one to drafting.sources, or choose among {', '.join([BASELINE, *drafting])}."
            )
    return [BASELINE, *(name for name in wanted if name != BASELINE)]

"""From an artefact to contenders in this process: one engine, a scheduler per strategy, the transformers baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pipeline.bench.contender import SchedulerContender
from pipeline.bench.workload import Tokenizer
from pipeline.decoding.strategy import STRATEGIES, source_names
from pipeline.engine.artifact import Artifact
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.load import create_scheduler, load_engine
from pipeline.errors import UserError

BASELINE = "none"


@dataclass(slots=True)
class InProcess:
    """A loaded engine, its tokenizer, and the tokens that end an output."""

    artifact: Artifact
    engine: TorchEngine
    tokenizer: Tokenizer
    end_ids: frozenset[int] = field(default_factory=frozenset)

    def contender(self, strategy: str) -> SchedulerContender:
        """A strategy with draft sources of its own."""
        return SchedulerContender(
            strategy, lambda: create_scheduler(self.artifact, engine=self.engine), self.engine.forget_cached
        )


def open_in_process(artifact: Artifact) -> InProcess:
    """Load engine and tokenizer. Raises UserError if the artefact is for a backend that does not run in process."""
    if artifact.resolved.backend != "torch":
        raise UserError(
            f"The engine in {artifact.folder} is a {artifact.resolved.backend} engine, which runs in a server only. "
            "Start it with `lookahead serve` and measure through it with --url, or use --set backend=torch."
        )
    tokenizer = load_tokenizer(artifact)
    return InProcess(artifact, load_engine(artifact), tokenizer, end_ids_of(artifact, tokenizer))


def load_tokenizer(artifact: Artifact) -> Tokenizer:
    from transformers import AutoTokenizer

    return cast(Tokenizer, AutoTokenizer.from_pretrained(artifact.tokenizer_dir, local_files_only=True))


def end_ids_of(artifact: Artifact, tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end an output: those of the checkpoint's generation config, and the tokenizer's end token."""
    from transformers import GenerationConfig

    found: set[int] = set()
    if (Path(artifact.engine_dir) / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(artifact.engine_dir).eos_token_id
        found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(found)


def choose_strategies(artifact: Artifact, wanted: Sequence[str] | None) -> list[str]:
    """The strategies to measure, the baseline first. None: all that the profile has draft sources for. Raises UserError
    for one that is unknown or that would be plain decoding under this profile."""
    available = [source.kind for source in artifact.resolved.profile.drafting.sources]
    drafting = [name for name in STRATEGIES if name not in (BASELINE, "auto") and source_names(name, available)]
    if wanted is None:
        return [BASELINE, *drafting]
    for name in wanted:
        if name not in STRATEGIES:
            raise UserError(f"There is no strategy {name!r}; --strategies takes {', '.join(STRATEGIES)}.")
        if name != BASELINE and not source_names(name, available):
            raise UserError(
                f"Strategy {name!r} has no draft source in profile {artifact.resolved.profile.name}, so it would be "
                f"plain decoding; add one to drafting.sources, or choose among {', '.join([BASELINE, *drafting])}."
            )
    return [BASELINE, *(name for name in wanted if name != BASELINE)]

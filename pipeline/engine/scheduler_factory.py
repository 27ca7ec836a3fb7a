"""Creates the scheduler of a loaded engine, and loads its vocabulary for grammars."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pipeline.config.schema import SuppliedDraftConfig
from pipeline.decoding.drafting.drafter_factory import ALL_KINDS, create_drafter
from pipeline.decoding.grammar.compiler import Compiler, Vocabulary, load_vocabulary
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, Planner
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import Engine
from pipeline.engine.cost_curve import load_cost_curve
from pipeline.engine.first_rows import load_first_rows
from pipeline.engine.running_request import SUPPLIED
from pipeline.engine.scheduler import Scheduler
from pipeline.errors import BuildError, RequestError


def create_compiler(artifact: Artifact, engine: Engine) -> Compiler:
    """A compiler of guides for the engine's vocabulary, which it loads for the first guide."""
    return Compiler(lambda: artifact_vocabulary(artifact, engine.limits.vocab_size))


def create_scheduler(
    artifact: Artifact,
    engine: Engine,
    kinds: Collection[str] | None = None,
    compiler: Compiler | None = None,
    planner: Planner | None = None,
) -> Scheduler:
    """A scheduler over a loaded engine. kinds: draft sources in this process, None for all; in a server the others are
    in the BLS model. compiler, planner: those that several schedulers share. Raises the error of `create_planner`."""
    profile = artifact.resolved.profile
    drafting = profile.drafting
    wanted = ALL_KINDS if kinds is None else kinds
    sources = drafting.sources
    if kinds is not None and all(source.kind != SUPPLIED for source in sources):
        # A served engine always verifies the drafts that a request brings.
        sources = (*sources, SuppliedDraftConfig())
    drafter = create_drafter(sources, artifact.resolved.lookahead, engine.limits.vocab_size, wanted)
    first_rows = load_first_rows(artifact)
    if first_rows is not None:
        drafter.begin_with(first_rows.rows)
    return Scheduler(
        engine,
        drafter,
        planner or create_planner(artifact),
        default_budget=DraftBudget(drafting.max_draft_tokens, drafting.max_draft_len),
        max_queue_size=profile.scheduling.max_queue_size,
        prefill_chunk=profile.engine.prefill_chunk,
        compiler=compiler or create_compiler(artifact, engine),
    )


def create_planner(artifact: Artifact, always_drafts: bool = False) -> Planner:
    """The planner of the artifact's profile. always_drafts: see `AdaptivePlanner`. Raises BuildError if an adaptive
    planner has no cost curve."""
    if artifact.resolved.profile.drafting.planner == "fixed":
        return FixedPlanner()
    stored = load_cost_curve(artifact)
    if stored is None:
        raise BuildError(
            f"drafting.planner is adaptive and the engine in {artifact.folder} has no cost curve of this machine; "
            f"measure one with `lookahead bench --cost-curve --model {artifact.manifest.model} "
            f"--profile {artifact.manifest.profile}`, or use --set drafting.planner=fixed"
        )
    return AdaptivePlanner(stored.curve, always_drafts)


def artifact_vocabulary(artifact: Artifact, vocab_size: int) -> Vocabulary:
    """Load the vocabulary of an artifact. vocab_size: of the engine's logits. Raises RequestError if the artifact has
    no tokenizer that grammars support, or no end token."""
    path = artifact.tokenizer_dir / "tokenizer.json"
    if not path.is_file():
        raise RequestError("this model has no tokenizer.json, which grammars need; leave the guide out")
    text = path.read_text(encoding="utf-8")
    tokens = {token["content"]: token for token in json.loads(text).get("added_tokens", [])}
    special = frozenset(content for content, token in tokens.items() if token.get("special"))
    return load_vocabulary(text, vocab_size, _end_id(artifact, vocab_size, tokens), special)


def _end_id(artifact: Artifact, vocab_size: int, added_tokens: dict[str, Any]) -> int:
    """The first end token in the model's files that lies in the vocabulary."""
    for folder, name in (
        (artifact.engine_dir, "generation_config.json"),
        (artifact.engine_dir, "config.json"),
        (artifact.tokenizer_dir, "tokenizer_config.json"),
    ):
        values = json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else {}
        ends = values.get("eos_token_id")
        for end in ends if isinstance(ends, list) else [ends]:
            if isinstance(end, int) and 0 <= end < vocab_size:
                return end
        word = values.get("eos_token")
        word = word.get("content") if isinstance(word, dict) else word
        if word in added_tokens:
            return int(added_tokens[word]["id"])
    raise RequestError("this model's files name no end token, which grammars need; leave the guide out")

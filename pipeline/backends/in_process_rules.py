"""Checks of the sizes of engines that run in process."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.config.faults import Fault, fault
from pipeline.config.schema import EngineConfig, ProfileConfig, ResolvedConfig


def faults_of_sizes(profile: ProfileConfig) -> Iterator[Fault]:
    """Faults of the limits of engine and drafting. Independent of the model."""
    engine, drafting = profile.engine, profile.drafting
    if drafting.max_draft_tokens > engine.max_draft_tokens:
        yield fault(
            "drafting.max_draft_tokens",
            f"found {drafting.max_draft_tokens}; the engine verifies trees of at most engine.max_draft_tokens = "
            f"{engine.max_draft_tokens}.",
            "Lower the first or raise the second.",
            uses=("drafting.max_draft_tokens", "engine.max_draft_tokens"),
            fixes=(
                f"drafting.max_draft_tokens={engine.max_draft_tokens}",
                f"engine.max_draft_tokens={drafting.max_draft_tokens}",
            ),
        )
    yield from _faults_of_pass(engine, drafting.max_draft_tokens, "drafts", "drafting.max_draft_tokens")
    if engine.prefill_chunk > engine.max_num_tokens:
        yield fault(
            "engine.prefill_chunk",
            f"found {engine.prefill_chunk}; a pass holds at most engine.max_num_tokens = {engine.max_num_tokens}.",
            "Lower the first or raise the second.",
            uses=("engine.prefill_chunk", "engine.max_num_tokens"),
            fixes=(f"engine.prefill_chunk={engine.max_num_tokens}",),
        )
    if engine.max_draft_tokens >= engine.max_seq_len:
        yield fault(
            "engine.max_draft_tokens",
            f"found {engine.max_draft_tokens}; drafts count towards engine.max_seq_len = {engine.max_seq_len}, "
            "which leaves no tokens for prompt and output.",
            "Lower the first or raise the second.",
            uses=("engine.max_draft_tokens", "engine.max_seq_len"),
        )
    if engine.max_draft_tokens == 0 and drafting.strategy != "none":
        yield fault(
            "drafting.strategy",
            f"found '{drafting.strategy}'; an engine with engine.max_draft_tokens = 0 has no drafts, "
            "so it should be 'none'.",
            uses=("drafting.strategy", "engine.max_draft_tokens"),
            fixes=("drafting.strategy=none",),
        )


def faults_of_window(resolved: ResolvedConfig) -> Iterator[Fault]:
    """Faults of a lookahead window that is too large for the engine."""
    model, profile, lookahead = resolved.model, resolved.profile, resolved.lookahead
    engine = profile.engine
    w, n, g = lookahead.sizes
    origin = "model.lookahead." + (profile.name if profile.name in model.lookahead else "default")
    if lookahead.max_draft_len > engine.max_draft_tokens:
        yield fault(
            origin,
            f"W = {w}, N = {n}, G = {g} needs {lookahead.max_draft_len} draft tokens; "
            f"the engine verifies at most engine.max_draft_tokens = {engine.max_draft_tokens}.",
            "Raise the limit or choose smaller sizes.",
            uses=(origin, "engine.max_draft_tokens"),
            fixes=(
                f"engine.max_draft_tokens={lookahead.max_draft_len}",
                f"{origin}=null",
            ),
        )
    if lookahead.max_draft_len < engine.max_seq_len:  # a larger one does not fit whatever the pass holds
        windows = f"lookahead windows (W = {w}, N = {n}, G = {g})"
        yield from _faults_of_pass(engine, lookahead.max_draft_len, windows, origin)


def _faults_of_pass(engine: EngineConfig, num_drafts: int, drafts: str, key: str) -> Iterator[Fault]:
    """Fault of a pass that is too small for the drafts of a full batch. num_drafts: per sequence. key: setting of that
    number."""
    needed = engine.max_batch_size * (num_drafts + 1)
    if needed > engine.max_num_tokens:
        yield fault(
            "engine.max_num_tokens",
            f"found {engine.max_num_tokens}; a full batch of {drafts} needs {engine.max_batch_size} x "
            f"({num_drafts} + 1) = {needed}.",
            f"Raise it, or lower engine.max_batch_size or {key}.",
            uses=("engine.max_num_tokens", "engine.max_batch_size", key),
            fixes=(f"engine.max_num_tokens={needed}",),
        )

"""Combinations of settings that cannot work, each told with its key, what was found and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.config.schema import LookaheadConfig, ModelConfig, ProfileConfig

LOOKAHEAD_OFF = LookaheadConfig(
    max_window_size=1, max_ngram_size=1, max_verification_set_size=0, origin="off: not tuned for this model"
)

# Draft sources that a strategy cannot do without.
_NEEDED_SOURCES = {"trie": ("trie",), "lookahead": ("window",), "hybrid": ("window", "trie")}


class Conflict(NamedTuple):
    """`key` starts with "model." for settings of the model; `uses` are the settings whose combination is wrong."""

    key: str
    uses: tuple[str, ...]
    text: str


def lookahead_for(model: ModelConfig, profile_name: str) -> LookaheadConfig:
    """W, N and G of a model under a profile: its own, else the model's default, else off."""
    return model.lookahead.get(profile_name) or model.lookahead.get("default") or LOOKAHEAD_OFF


def uses_window(profile: ProfileConfig) -> bool:
    """Whether requests may run a lookahead window inside the engine."""
    has_window = any(source.kind == "window" for source in profile.drafting.sources)
    return has_window and profile.drafting.strategy in ("lookahead", "hybrid", "auto")


def conflicts_of_profile(profile: ProfileConfig) -> Iterator[Conflict]:
    """What is wrong with a profile whatever the model."""
    # TensorRT-LLM's engines have sizes of drafts of their own, and rules for them.
    if profile.backend != "tensorrt_llm":
        yield from _conflicts_of_sizes(profile)
    yield from _conflicts_of_sources(profile)
    yield from _conflicts_of_ports(profile)
    yield from _conflicts_of_backend(profile)


def conflicts_of_pair(model: ModelConfig, profile: ProfileConfig, known_profiles: list[str]) -> Iterator[Conflict]:
    """What is wrong with a model under this profile."""
    engine = profile.engine
    if engine.max_seq_len > model.max_position_embeddings:
        yield Conflict(
            "engine.max_seq_len",
            ("engine.max_seq_len", "model.max_position_embeddings"),
            f"found {engine.max_seq_len}; {model.name} was made for at most {model.max_position_embeddings} positions. "
            "Lower it to that, or take a model for longer texts.",
        )
    for name in model.lookahead:
        if name not in ("default", profile.name, *known_profiles):
            yield Conflict(
                f"model.lookahead.{name}",
                (f"model.lookahead.{name}",),
                f"names no profile. Known: default, {', '.join(known_profiles)}.",
            )
    if profile.backend == "torch":
        yield from _conflicts_of_ranks(model, profile)
        if uses_window(profile):
            yield from _conflicts_of_window(model, profile)


def _conflicts_of_sizes(profile: ProfileConfig) -> Iterator[Conflict]:
    engine, drafting = profile.engine, profile.drafting
    if drafting.max_draft_tokens > engine.max_draft_tokens:
        yield Conflict(
            "drafting.max_draft_tokens",
            ("drafting.max_draft_tokens", "engine.max_draft_tokens"),
            f"found {drafting.max_draft_tokens}; the engine holds trees of at most engine.max_draft_tokens = "
            f"{engine.max_draft_tokens}. Lower the first or raise the second.",
        )
    per_batch = engine.max_batch_size * (drafting.max_draft_tokens + 1)
    if per_batch > engine.max_num_tokens:
        yield Conflict(
            "engine.max_num_tokens",
            ("engine.max_num_tokens", "engine.max_batch_size", "drafting.max_draft_tokens"),
            f"found {engine.max_num_tokens}; a full batch of drafts needs {engine.max_batch_size} x "
            f"({drafting.max_draft_tokens} + 1) = {per_batch}. "
            "Raise it, or lower engine.max_batch_size or drafting.max_draft_tokens.",
        )
    if engine.prefill_chunk > engine.max_num_tokens:
        yield Conflict(
            "engine.prefill_chunk",
            ("engine.prefill_chunk", "engine.max_num_tokens"),
            f"found {engine.prefill_chunk}; a pass holds at most engine.max_num_tokens = {engine.max_num_tokens}. "
            "Lower the first or raise the second.",
        )
    if engine.max_draft_tokens >= engine.max_seq_len:
        yield Conflict(
            "engine.max_draft_tokens",
            ("engine.max_draft_tokens", "engine.max_seq_len"),
            f"found {engine.max_draft_tokens}; drafts count towards engine.max_seq_len = {engine.max_seq_len} "
            "and leave no room. Lower the first or raise the second.",
        )
    if engine.max_draft_tokens == 0 and drafting.strategy != "none":
        yield Conflict(
            "drafting.strategy",
            ("drafting.strategy", "engine.max_draft_tokens"),
            f"found '{drafting.strategy}'; an engine with engine.max_draft_tokens = 0 has no drafts, "
            "so it should be 'none'.",
        )


def _conflicts_of_ranks(model: ModelConfig, profile: ProfileConfig) -> Iterator[Conflict]:
    tensor, parallel = model.parallelism.tensor, profile.engine.lookahead_parallel
    if model.parallelism.pipeline > 1:
        yield Conflict(
            "model.parallelism.pipeline",
            ("model.parallelism.pipeline", "backend"),
            f"found {model.parallelism.pipeline}; the torch backend has no pipeline parallelism. "
            "Set it to 1, or use backend: tensorrt_llm.",
        )
    if tensor > 1 and parallel > 1:
        yield Conflict(
            "engine.lookahead_parallel",
            ("engine.lookahead_parallel", "model.parallelism.tensor"),
            f"found {parallel}, and model.parallelism.tensor is {tensor}; the torch backend has one or the other. "
            "Set one of them to 1.",
        )
    if model.shape is not None and (num_heads := model.shape.num_key_value_heads) % tensor:
        yield Conflict(
            "model.parallelism.tensor",
            ("model.parallelism.tensor", "model.shape.num_key_value_heads"),
            f"found {tensor}, which does not divide the {num_heads} key/value heads of {model.name}. "
            "Choose a number that does.",
        )
    if tensor > 1 and profile.engine.quantization != "none":
        yield Conflict(
            "engine.quantization",
            ("engine.quantization", "model.parallelism.tensor"),
            f"found '{profile.engine.quantization}', which is not spread over model.parallelism.tensor = {tensor} "
            "ranks. Use 'none', or a single rank.",
        )


def _conflicts_of_window(model: ModelConfig, profile: ProfileConfig) -> Iterator[Conflict]:
    engine, lookahead = profile.engine, lookahead_for(model, profile.name)
    w, n, g = lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size
    origin = "model.lookahead." + (profile.name if profile.name in model.lookahead else "default")
    if lookahead.max_draft_len > engine.max_draft_tokens:
        yield Conflict(
            origin,
            (origin, "engine.max_draft_tokens"),
            f"W = {w}, N = {n}, G = {g} needs {lookahead.max_draft_len} draft tokens; "
            f"the engine holds engine.max_draft_tokens = {engine.max_draft_tokens}. Raise that or choose less.",
        )
    per_batch = engine.max_batch_size * (lookahead.max_draft_len + 1)
    if per_batch > engine.max_num_tokens:
        yield Conflict(
            "engine.max_num_tokens",
            ("engine.max_num_tokens", "engine.max_batch_size", origin),
            f"found {engine.max_num_tokens}; a full batch of lookahead windows (W = {w}, N = {n}, G = {g}) needs "
            f"{engine.max_batch_size} x {lookahead.max_draft_len + 1} = {per_batch}. "
            f"Raise it, or lower engine.max_batch_size or {origin}.",
        )


def _conflicts_of_sources(profile: ProfileConfig) -> Iterator[Conflict]:
    kinds = [source.kind for source in profile.drafting.sources]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield Conflict("drafting.sources", ("drafting.sources",), f"holds '{kind}' twice; keep one.")
    strategy = profile.drafting.strategy
    missing = [kind for kind in _NEEDED_SOURCES.get(strategy, ()) if kind not in kinds]
    if missing:
        yield Conflict(
            "drafting.sources",
            ("drafting.sources", "drafting.strategy"),
            f"lacks {' and '.join(repr(kind) for kind in missing)}, which drafting.strategy = '{strategy}' needs.",
        )


def _conflicts_of_ports(profile: ProfileConfig) -> Iterator[Conflict]:
    seen: dict[int, str] = {}
    for key in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(profile.server, key)
        if port and port in seen:
            yield Conflict(
                f"server.{key}",
                (f"server.{key}", f"server.{seen[port]}"),
                f"found {port}, which server.{seen[port]} has too; give each its own, or 0 for a free one.",
            )
        seen.setdefault(port, key)


def _conflicts_of_backend(profile: ProfileConfig) -> Iterator[Conflict]:
    if profile.backend != "tensorrt_llm":
        return
    if profile.device == "cpu":
        yield Conflict(
            "device",
            ("device", "backend"),
            "found 'cpu'; backend tensorrt_llm needs a GPU. Use backend: torch on a CPU.",
        )
    if profile.engine.quantization != "none":
        yield Conflict(
            "engine.quantization",
            ("engine.quantization", "backend"),
            f"found '{profile.engine.quantization}', a format of the torch backend. Use 'none' and, for the same on "
            "TensorRT-LLM, tensorrt_llm.quantization: int8_wo.",
        )
    if profile.engine.lookahead_parallel > 1:
        yield Conflict(
            "engine.lookahead_parallel",
            ("engine.lookahead_parallel", "backend"),
            f"found {profile.engine.lookahead_parallel}; TensorRT-LLM has no lookahead parallelism. Use 1, or "
            "backend: torch.",
        )

"""Checks for combinations of settings that do not work with any backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.config.faults import Fault, fault
from pipeline.config.schema import SOURCE_ROWS, LookaheadConfig, ModelConfig, ProfileConfig, carries

LOOKAHEAD_OFF = LookaheadConfig.of(1, 1, 0, origin="off: not tuned for this model")


def lookahead_for(model: ModelConfig, profile_name: str) -> LookaheadConfig:
    """W, N and G of a model for a profile: the profile's entry, else the model's default, else off."""
    return model.lookahead.get(profile_name) or model.lookahead.get("default") or LOOKAHEAD_OFF


def uses_window(profile: ProfileConfig) -> bool:
    """Whether requests may run a lookahead window inside the engine."""
    has_window = any(source.kind == "window" for source in profile.drafting.sources)
    return has_window and profile.drafting.strategy in ("lookahead", "hybrid", "auto")


def faults_of_profile(profile: ProfileConfig) -> Iterator[Fault]:
    """Faults of a profile for any model and backend."""
    yield from _faults_of_sources(profile)
    yield from _faults_of_access(profile)
    if profile.server.replicas > 1 and not profile.server.openai:
        yield fault(
            "server.replicas",
            f"found {profile.server.replicas}, and server.openai is false; only its front end uses several servers.",
            "Set it to 1, or enable the OpenAI API.",
            uses=("server.replicas", "server.openai"),
            fixes=("server.replicas=1", "server.openai=true"),
        )
    yield from _faults_of_ports(profile)


def faults_of_pair(model: ModelConfig, profile: ProfileConfig, known_profiles: Sequence[str]) -> Iterator[Fault]:
    """Faults of a model under this profile for any backend."""
    engine = profile.engine
    if engine.max_seq_len > model.max_position_embeddings:
        yield fault(
            "engine.max_seq_len",
            f"found {engine.max_seq_len}; {model.name} has at most {model.max_position_embeddings} positions.",
            "Lower it to that, or use a model with a longer context.",
            uses=("engine.max_seq_len", "model.max_position_embeddings"),
            fixes=(f"engine.max_seq_len={model.max_position_embeddings}",),
        )
    for name in model.lookahead:
        if name not in ("default", profile.name, *known_profiles):
            yield fault(f"model.lookahead.{name}", "is not a profile.", f"Known: default, {', '.join(known_profiles)}.")


def _faults_of_sources(profile: ProfileConfig) -> Iterator[Fault]:
    kinds = [source.kind for source in profile.drafting.sources]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield fault("drafting.sources", f"holds '{kind}' twice; keep one.")
    strategy = profile.drafting.strategy
    if strategy not in ("none", "auto") and not carries(strategy, kinds):
        serving = [kind for kind in SOURCE_ROWS if carries(strategy, (kind,))]
        yield fault(
            "drafting.sources",
            f"found {', '.join(kinds) or 'none'}; drafting.strategy = '{strategy}' needs one of {', '.join(serving)}.",
            uses=("drafting.sources", "drafting.strategy"),
        )


def _faults_of_access(profile: ProfileConfig) -> Iterator[Fault]:
    server, gateway = profile.server, profile.server.gateway
    if server.api_keys and not gateway.enabled:
        yield fault(
            "server.api_keys",
            "holds keys, and server.gateway.enabled is false; only the gateway checks keys.",
            "Enable it, or remove the keys.",
            uses=("server.api_keys", "server.gateway.enabled"),
            fixes=("server.gateway.enabled=true",),
        )
    if server.side_channel_safe and (not gateway.enabled or gateway.inner_models):
        yield fault(
            "server.side_channel_safe",
            "found true, and clients reach the model tensorrt_llm, which returns figures of drafts.",
            "Set server.gateway.enabled to true, and server.gateway.inner_models to false.",
            uses=("server.side_channel_safe", "server.gateway.enabled", "server.gateway.inner_models"),
            fixes=("server.gateway.enabled=true", "server.gateway.inner_models=false"),
        )


def _faults_of_ports(profile: ProfileConfig) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for key in ("http_port", "grpc_port", "metrics_port", *(["openai_port"] if profile.server.openai else [])):
        port = getattr(profile.server, key)
        if port and port in seen:
            yield fault(
                f"server.{key}",
                f"found {port}, the same as server.{seen[port]}; use different ports, or 0 for a free one.",
                uses=(f"server.{key}", f"server.{seen[port]}"),
            )
        seen.setdefault(port, key)

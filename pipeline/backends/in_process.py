"""Base class of backends whose engine runs in Python. One tritonserver serves it with
`triton_repo/tensorrt_llm_engine`. Also the checks of such an engine's sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.faults import Fault, fault
from pipeline.config.folders import Folders
from pipeline.config.hardware import Hardware
from pipeline.config.rules import uses_window
from pipeline.config.schema import Device, EngineConfig, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import Backend, Note
from pipeline.engine.start_command import MakeCommand, StartCommand
from pipeline.engine.traits import TargetTraits
from pipeline.errors import ServerError
from pipeline.repository.names import TARGET_MODEL

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from pipeline.engine.artifact import Artifact


class InProcessBackend(Backend):
    """Base class of backends that run in process. A subclass adds name, `fingerprint`, `runtime`, `write_engine` and
    `load_engine`."""

    in_process = True

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        return False

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        return "cpu"

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware) -> Iterable[Fault]:
        return faults_of_sizes(profile)

    def faults(self, resolved: ResolvedConfig) -> Iterable[Fault]:
        return faults_of_window(resolved) if uses_window(resolved.profile) else ()

    def traits(self, resolved: ResolvedConfig) -> tuple[TargetTraits, ...]:
        return (
            TargetTraits(
                model=TARGET_MODEL,
                strategies=frozenset({"none", "lookahead", "trie", "hybrid"}),
                keyed_noise=True,
                max_seq_len=resolved.profile.engine.max_seq_len,
                guided=True,
            ),
        )

    def target_configs(self, resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
        from pipeline.repository.model_config import python_target

        return [python_target(resolved, artifact)]

    def check_served(self, resolved: ResolvedConfig) -> None:
        if resolved.profile.engine.lookahead_parallel > 1:
            raise ServerError(
                f"engine.lookahead_parallel = {resolved.profile.engine.lookahead_parallel} runs in process only "
                "(bench, verify, tune, experiments); a server runs the engine in one process. Use "
                "engine.lookahead_parallel = 1."
            )

    def check_start(self, resolved: ResolvedConfig, folders: Folders) -> str:
        from pipeline.server.installation import usable_installation

        return str(usable_installation(folders).executable)

    def make_command(
        self, resolved: ResolvedConfig, repository: Path, folders: Folders, run_dir: Path, log: Path | None, note: Note
    ) -> MakeCommand:
        from pipeline.server.installation import prepare_backends, server_environment, usable_installation
        from pipeline.server.server import BACKENDS
        from pipeline.server.tritonserver_command import single_process

        installation = usable_installation(folders)
        note(f"tritonserver: {installation.executable} ({installation.origin})")
        backends = prepare_backends(installation, run_dir / BACKENDS)
        environment = server_environment(folders, installation, replicas=resolved.profile.server.replicas)
        return single_process(installation, backends, repository, environment, log)

    def shown_commands(self, resolved: ResolvedConfig, repository: Path, folders: Folders) -> Sequence[StartCommand]:
        from pipeline.server.installation import find_installation
        from pipeline.server.run_folders import run_dir
        from pipeline.server.server import BACKENDS
        from pipeline.server.tritonserver_command import SHOWN_ID, shown_listening, single_process

        installation = find_installation()
        backends = None if installation.wheel_dir is None else run_dir(folders) / BACKENDS
        make = single_process(installation, backends, repository, {})
        return [make(shown_listening(resolved.profile.server), SHOWN_ID)]


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
            fixes=(f"engine.max_draft_tokens={lookahead.max_draft_len}",),
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

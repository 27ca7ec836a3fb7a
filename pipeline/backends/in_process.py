"""Base class of backends whose engine runs in Python. One tritonserver serves it with
`triton_repo/tensorrt_llm_engine`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backends.in_process_rules import faults_of_sizes, faults_of_window
from pipeline.config.faults import Fault
from pipeline.config.hardware import Hardware
from pipeline.config.places import Places
from pipeline.config.rules import uses_window
from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import Backend, Note
from pipeline.engine.command import MakeCommand, StartCommand
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

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware | None) -> Iterable[Fault]:
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

    def check_start(self, resolved: ResolvedConfig, places: Places) -> str:
        from pipeline.server.installation import usable_installation

        return str(usable_installation(places).executable)

    def make_command(
        self, resolved: ResolvedConfig, repository: Path, places: Places, run_dir: Path, log: Path | None, note: Note
    ) -> MakeCommand:
        from pipeline.server.command import single_process
        from pipeline.server.installation import prepare_backends, server_environment, usable_installation
        from pipeline.server.server import BACKENDS

        installation = usable_installation(places)
        note(f"tritonserver: {installation.executable} ({installation.origin})")
        backends = prepare_backends(installation, run_dir / BACKENDS)
        environment = server_environment(places, installation, replicas=resolved.profile.server.replicas)
        return single_process(installation, backends, repository, environment, log)

    def shown_commands(self, resolved: ResolvedConfig, repository: Path, places: Places) -> Sequence[StartCommand]:
        from pipeline.server.command import SHOWN_ID, shown_listening, single_process
        from pipeline.server.installation import find_installation
        from pipeline.server.server import BACKENDS
        from pipeline.server.startup import run_dir

        installation = find_installation()
        backends = None if installation.wheel_dir is None else run_dir(places) / BACKENDS
        make = single_process(installation, backends, repository, {})
        return [make(shown_listening(resolved.profile.server), SHOWN_ID)]

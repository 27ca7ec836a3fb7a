"""The TensorRT-LLM backend: engines of release line 1.2 in Triton's `tensorrtllm` backend, on NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.backends.tensorrt_llm import build, command, rules
from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.doctor import examine_tensorrt_llm
from pipeline.backends.tensorrt_llm.environment import (
    engine_device,
    engine_version,
    gpus,
    package_versions,
    validation_settings,
)
from pipeline.backends.tensorrt_llm.instance import engine_dirs, instances_of
from pipeline.backends.tensorrt_llm.release_data import version_tables
from pipeline.config.faults import Fault
from pipeline.config.folders import Folders
from pipeline.config.hardware import Hardware
from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import Backend, Runtime
from pipeline.engine.traits import Mode, TargetTraits
from pipeline.errors import UserError

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine

# Lookahead decoding and external drafts need Ampere or later.
_MIN_CAPABILITY = 80
_STRATEGIES: dict[Mode, frozenset[str]] = {
    "none": frozenset({"none"}),
    "trie": frozenset({"none", "trie"}),
    "lookahead": frozenset({"none", "lookahead"}),
}


class TensorRTLLMBackend(Backend):
    """Backend with an engine per speculative mode. The stages of a build run on this machine or in NVIDIA's
    container."""

    name = "tensorrt_llm"
    in_process = False

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        capable = hardware.has_tensorrt_llm and hardware.compute_capability >= _MIN_CAPABILITY
        return capable and profile.device != "cpu"

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        return "cuda"

    def faults(self, resolved: ResolvedConfig) -> Iterable[Fault]:
        return rules.faults_of(build_context_of(resolved))

    def check(self, resolved: ResolvedConfig) -> None:
        rules.check(resolved)

    plan = staticmethod(build.plan)
    full_plan = staticmethod(build.full_plan)
    fingerprint = staticmethod(build.fingerprint)
    require_resources = staticmethod(build.require_resources)
    write_engine = staticmethod(build.write_engine)
    profile_faults = staticmethod(rules.faults_of_profile)

    def runtime(self, resolved: ResolvedConfig) -> Runtime:
        return Runtime({"tensorrt_llm": engine_version(resolved)}, engine_device(resolved))

    def load_engine(self, artifact: Artifact) -> Engine:
        raise UserError(
            f"The engine in {artifact.folder} is a TensorRT-LLM engine, which runs in a server only. Start it with "
            "`lookahead serve` and measure through it with --url, or use --set backend=torch."
        )

    def traits(self, resolved: ResolvedConfig) -> tuple[TargetTraits, ...]:
        context = BuildContext(resolved, None)
        return tuple(
            TargetTraits(
                model=instance.triton_model,
                strategies=_STRATEGIES[instance.mode],
                keyed_noise=False,
                max_seq_len=instance.limits.usable_seq_len,
                limits=instance.limits,
                mode=instance.mode,
                lookahead=instance.lookahead,
                # The release applies grammars in plain decoding, not to draft tokens.
                guided=instance.mode == "none" and bool(context.parameter("guided_decoding_backend")),
            )
            for instance in instances_of(context)
        )

    def target_configs(self, resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
        from pipeline.backends.tensorrt_llm.repository import target_configs

        return target_configs(resolved, artifact)

    def vocab_dir(self, artifact: Artifact) -> Path:
        return engine_dirs(artifact)[0]

    def check_start(self, resolved: ResolvedConfig, folders: Folders) -> str:
        return str(command.startable_site(resolved).executable or "in docker")

    make_command = staticmethod(command.start_here)
    shown_commands = staticmethod(command.shown_commands)
    findings = staticmethod(examine_tensorrt_llm)
    version_tables = staticmethod(version_tables)
    validation_settings = staticmethod(validation_settings)

    def environment(self) -> Mapping[str, Any]:
        devices = [f"{gpu.name} ({gpu.memory_mib / 1024:.0f} GiB, driver {gpu.driver})" for gpu in gpus()]
        return {"versions": dict(package_versions()), "devices": devices}


BACKEND: Backend = TensorRTLLMBackend()

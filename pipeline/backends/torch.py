"""The torch backend: our own engine over Hugging Face modelling code, on a CPU or a CUDA GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.backends.in_process import InProcessBackend
from pipeline.config.faults import Fault, fault
from pipeline.config.hardware import Hardware
from pipeline.config.schema import Device, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import Backend, Runtime, backend_of
from pipeline.engine.fingerprint import device_architecture, library_versions
from pipeline.engine.torch import build
from pipeline.engine.traits import TargetTraits
from pipeline.errors import ServerError

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine


class TorchBackend(InProcessBackend):
    """Backend of `pipeline.engine.torch`. With engine.strict_tensorrt_llm the served model accepts and returns the same
    tensors as that of the TensorRT-LLM backend."""

    name = "torch"

    def fits(self, profile: ProfileConfig, hardware: Hardware) -> bool:
        return True

    def device(self, profile: ProfileConfig, hardware: Hardware) -> Device:
        return "cpu" if hardware.gpu is None else "cuda"

    def profile_faults(self, profile: ProfileConfig, hardware: Hardware) -> Iterator[Fault]:
        yield from super().profile_faults(profile, hardware)
        if profile.device == "cuda" and hardware.gpu is None:
            text = "found 'cuda'; torch finds no CUDA device on this machine. Use device: cpu or auto."
            yield fault("device", text)

    def faults(self, resolved: ResolvedConfig) -> Iterator[Fault]:
        yield from faults_of_ranks(resolved)
        yield from super().faults(resolved)

    check = staticmethod(build.check)
    check_config = staticmethod(build.check_config)
    plan = staticmethod(build.plan)
    fingerprint = staticmethod(build.fingerprint)
    files_digest = staticmethod(build.files_digest)
    token_entries = staticmethod(build.token_entries)
    require_resources = staticmethod(build.require_resources)
    write_engine = staticmethod(build.write_engine)

    def runtime(self, resolved: ResolvedConfig) -> Runtime:
        return Runtime(library_versions("torch", build.LIBRARIES), device_architecture(resolved.device))

    def load_engine(self, artifact: Artifact) -> Engine:
        from pipeline.engine.torch.load import load_engine

        return load_engine(artifact)

    def traits(self, resolved: ResolvedConfig) -> tuple[TargetTraits, ...]:
        if not resolved.profile.engine.strict_tensorrt_llm:
            return super().traits(resolved)
        return tuple(replace(traits, keyed_noise=True) for traits in backend_of("tensorrt_llm").traits(resolved))

    def target_configs(self, resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
        from pipeline.repository.model_config import python_target

        first = self.traits(resolved)[0]
        return [python_target(resolved, artifact, extended=first.extended, strict_mode=first.mode)]

    def check_served(self, resolved: ResolvedConfig) -> None:
        if (ranks := resolved.model.parallelism.tensor) > 1:
            raise ServerError(
                f"model.parallelism.tensor = {ranks} of the torch backend runs in process only (bench, verify, tune, "
                "experiments). Use model.parallelism.tensor = 1, or backend: tensorrt_llm."
            )
        super().check_served(resolved)


def faults_of_ranks(resolved: ResolvedConfig) -> Iterator[Fault]:
    """Faults of parallelism that the torch engine does not support."""
    model, profile = resolved.model, resolved.profile
    tensor, parallel = model.parallelism.tensor, profile.engine.lookahead_parallel
    if model.parallelism.pipeline > 1:
        yield fault(
            "model.parallelism.pipeline",
            f"found {model.parallelism.pipeline}; the torch backend has no pipeline parallelism.",
            "Set it to 1, or use backend: tensorrt_llm.",
            uses=("model.parallelism.pipeline", "backend"),
            fixes=("model.parallelism.pipeline=1",),
        )
    if tensor > 1 and parallel > 1:
        yield fault(
            "engine.lookahead_parallel",
            f"found {parallel}, and model.parallelism.tensor is {tensor}; the torch backend does not combine them.",
            "Set one of them to 1.",
            uses=("engine.lookahead_parallel", "model.parallelism.tensor"),
            fixes=("engine.lookahead_parallel=1",),
        )
    if model.shape is not None and (num_heads := model.shape.num_key_value_heads) % tensor:
        yield fault(
            "model.parallelism.tensor",
            f"found {tensor}, which does not divide the {num_heads} key/value heads of {model.name}.",
            "Choose a number that does.",
            uses=("model.parallelism.tensor", "model.shape.num_key_value_heads"),
            fixes=("model.parallelism.tensor=1",),
        )
    if tensor > 1 and profile.engine.quantization != "none":
        yield fault(
            "engine.quantization",
            f"found '{profile.engine.quantization}', which does not work with model.parallelism.tensor = {tensor} "
            "ranks.",
            "Use 'none', or a single rank.",
            uses=("engine.quantization", "model.parallelism.tensor"),
        )


BACKEND: Backend = TorchBackend()

"""The complete plan of a TensorRT-LLM engine: every stage with its exact command, its expected result and its cost.

    source       checkpoint folder with a normalized config.json            in this process
    conversion   -> TensorRT-LLM checkpoint, one file per rank               here or in the container
    build        -> engine, one per speculative mode                         here or in the container

Conversion and build are separate stages with separate fingerprints, so a second profile of a model, or a build after a
failed one, reuses finished stages. `plan_for` does not use the network and runs on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext, FlagValue
from pipeline.backends.tensorrt_llm.conversion import (
    Method,
    calib_dataset_of,
    calibration_folder,
    conversion_of,
    is_calibrated,
    mapping_arguments,
)
from pipeline.backends.tensorrt_llm.docker import container_name, docker_argv, stage_id
from pipeline.backends.tensorrt_llm.engine_build import build_argv, build_flags_of, expected_config
from pipeline.backends.tensorrt_llm.environment import Where, detect, engine_version
from pipeline.backends.tensorrt_llm.instance import Instance, instances_of
from pipeline.backends.tensorrt_llm.notes import notes_of
from pipeline.backends.tensorrt_llm.resource_estimate import Estimate, estimate_of
from pipeline.backends.tensorrt_llm.rules import check
from pipeline.checkpoint.fetch import describe_source, known_content_hash
from pipeline.config.folders import CODE, Folders, folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import STAGES
from pipeline.engine.fingerprint import digest_of
from pipeline.errors import ConfigError

_FORMAT = 2
_NOT_FETCHED = "known once the checkpoint is fetched"


@dataclass(frozen=True, slots=True)
class BuildStage:
    """A stage. folder: of the stage. output: its result in that folder. argv, docker_argv: its command, here and in the
    container. expected: required values of the output's config.json. digest: hash of the fingerprint."""

    folder: Path
    output: Path
    argv: tuple[str, ...]
    docker_argv: tuple[str, ...]
    expected: dict[str, Any]
    fingerprint: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True)
class ConversionStage(BuildStage):
    """Makes a TensorRT-LLM checkpoint. source: normalized checkpoint. call: see `Conversion`. request: file for it."""

    source: Path
    request: Path
    method: Method
    call: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineStage(BuildStage):
    """Makes one engine. instance: the Triton model that serves it. flags: options of trtllm-build by name."""

    instance: Instance
    flags: dict[str, FlagValue]


# Converts a command to its command in the container. Arguments: command, working folder, further folders to read.
InDocker = Callable[[tuple[str, ...], Path, Sequence[Path]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages of a build. where: where the stages run. version: of TensorRT-LLM there. world_size: ranks of each
    engine."""

    model: str
    profile: str
    checkpoint: str
    speculation: str
    where: Where
    image: str
    version: str
    environment: dict[str, str]
    world_size: int
    conversion: ConversionStage
    engines: tuple[EngineStage, ...]
    estimate: Estimate
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plan


def plan_for(resolved: ResolvedConfig, where: Folders | None = None, checkpoint_hash: str | None = None) -> Plan:
    """Make the plan of a config. checkpoint_hash: hash of the checkpoint; None if it has not been fetched. Raises
    ConfigError with all faults."""
    used = where or folders()
    context = check(resolved)
    stages = used.engines / resolved.model.name / STAGES
    _refuse_misleading_path(stages, resolved)
    content = checkpoint_hash or known_content_hash(resolved.model) or _NOT_FETCHED
    # The command in the container needs the package, and nothing else of the caller's environment.
    environment = {"PYTHONPATH": str(CODE)}
    image = release_data.image_of(resolved.profile.tensorrt_llm.container_tag)

    def in_docker(argv: tuple[str, ...], folder: Path, inputs: Sequence[Path]) -> tuple[str, ...]:
        readable = [CODE, *inputs]
        name = container_name(stage_id(folder))
        return docker_argv(
            image, argv, name=name, writable=[used.engines], readable=readable, work_dir=folder, environment=environment
        )

    conversion = _conversion_stage(context, stages, content, in_docker)
    engines = tuple(_engine_stage(context, each, conversion, stages, in_docker) for each in instances_of(context))
    return Plan(
        model=resolved.model.name,
        profile=resolved.profile.name,
        checkpoint=describe_source(resolved.model),
        speculation=resolved.profile.tensorrt_llm.speculation,
        where=detect().where,
        image=image,
        version=engine_version(resolved),
        environment=environment,
        world_size=context.world_size,
        conversion=conversion,
        engines=engines,
        estimate=estimate_of(context),
        notes=tuple(notes_of(context)),
    )


def _conversion_stage(context: BuildContext, stages: Path, content: str, in_docker: InDocker) -> ConversionStage:
    trt, dtype, ranks = context.trt, context.resolved.dtype, context.model.parallelism
    name = f"checkpoint-{dtype}-{trt.quantization}-kv-{trt.kv_cache_dtype}-tp{ranks.tensor}-pp{ranks.pipeline}"
    name += f"-cp{trt.context_parallel}" if trt.context_parallel > 1 else ""
    folder = stages / name
    source, output, request = folder / "source", folder / "converted", folder / "request.json"
    method, call, argv = conversion_of(context, source, output, request)
    fingerprint = {
        "format": _FORMAT,
        "checkpoint": content,
        "tensorrt_llm": engine_version(context.resolved),
        "architecture": context.model.architecture,
        "method": method,
        "dtype": dtype,
        "mapping": mapping_arguments(context),
        **context.quant_algos,
        "trust_remote_code": context.model.trust_remote_code,
        "calibration": [calib_dataset_of(context), trt.calib_size] if is_calibrated(context) else None,
    }
    texts = calibration_folder(context)
    return ConversionStage(
        folder=folder,
        source=source,
        output=output,
        request=request,
        method=method,
        call=call,
        argv=argv,
        docker_argv=in_docker(argv, folder, [texts] if texts else []),
        expected=_expected_checkpoint(context),
        fingerprint=fingerprint,
        digest=digest_of(fingerprint),
    )


def _expected_checkpoint(context: BuildContext) -> dict[str, Any]:
    """Required values of the converted config.json. Calibrated formats may add keys to `quantization`."""
    shape, ranks, context_ranks = context.known_shape, context.model.parallelism, context.trt.context_parallel
    mapping = {"world_size": context.world_size, "tp_size": ranks.tensor, "pp_size": ranks.pipeline}
    return {
        "dtype": context.resolved.dtype,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "mapping": mapping if context_ranks == 1 else {**mapping, "cp_size": context_ranks},
        "quantization": context.quant_algos,
    }


def _engine_stage(
    context: BuildContext, instance: Instance, conversion: ConversionStage, stages: Path, in_docker: InDocker
) -> EngineStage:
    mode = instance.mode
    folder = stages / f"engine-{context.resolved.profile.name}-{mode}"
    output = folder / "engine"
    flags = build_flags_of(context, mode, conversion.output, output)
    argv = build_argv(flags)
    fingerprint = {
        "format": _FORMAT,
        "conversion": conversion.digest,
        "tensorrt_llm": engine_version(context.resolved),
        "compute_capability": context.trt.compute_capability,
        "flags": {name: value for name, value in flags.items() if not name.endswith(("_dir", "_cache"))},
        "lookahead": None if instance.lookahead is None else list(instance.lookahead.sizes),
    }
    return EngineStage(
        folder=folder,
        output=output,
        instance=instance,
        flags=flags,
        argv=argv,
        docker_argv=in_docker(argv, folder, []),
        expected={
            # The engine contains the checkpoint's config; only the type of the logits is an option of the build.
            "pretrained_config": {**conversion.expected, "logits_dtype": "float32"},
            "build_config": expected_config(context, mode, flags),
        },
        fingerprint=fingerprint,
        digest=digest_of(fingerprint),
    )


def _refuse_misleading_path(folder: Path, resolved: ResolvedConfig) -> None:
    """Raise ConfigError if the path has a word by which the Llama loader selects another kind of model. The rules check
    the names in the config."""
    for word in release_data.misleading_words(resolved.model.architecture, str(folder)):
        raise ConfigError(
            f"LOOKAHEAD_ENGINES: found {folder}; TensorRT-LLM's Llama loader takes '{word}' in a path for another kind "
            "of model and loads wrong weights. Set it to a folder without that word."
        )

"""Plan, fingerprint and build of an engine, and the plan as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm.build_context import build_context_of
from pipeline.backends.tensorrt_llm.command import shown_commands
from pipeline.backends.tensorrt_llm.conversion import calibration_folder
from pipeline.backends.tensorrt_llm.environment import detect, engine_version, require_ready
from pipeline.backends.tensorrt_llm.instance import engine_dir
from pipeline.backends.tensorrt_llm.plan import EngineStage, Plan, plan_for
from pipeline.backends.tensorrt_llm.stages import Run, run_build, run_conversion, run_process
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.checkpoint.disk import gigabytes, require_space
from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import ENGINE, TOKENIZER, artifact_dir, share_folder
from pipeline.engine.backend import Note
from pipeline.engine.fingerprint import Fingerprint, Flag
from pipeline.engine.memory import require_memory
from pipeline.errors import BuildError
from pipeline.repository.names import REPOSITORY

_WHERE = {
    "here": "TensorRT-LLM of this machine",
    "docker": "docker, as TensorRT-LLM is not installed here",
    "nowhere": "neither TensorRT-LLM nor docker is here: run the calls below in the container",
}


def plan(resolved: ResolvedConfig) -> Mapping[str, Any]:
    """Main facts of a build, one line of text each. Raises ConfigError with all faults."""
    whole = plan_for(resolved)
    estimate = whole.estimate
    return {
        "speculation": whole.speculation,
        "runs on": _WHERE[whole.where],
        "container": f"{whole.image} (TensorRT-LLM {whole.version})",
        "ranks": str(whole.world_size),
        "conversion": f"{whole.conversion.method} -> {whole.conversion.output}",
        **{f"engine {stage.instance.triton_model}": _engine_line(stage) for stage in whole.engines},
        "disk": f"about {gigabytes(estimate.disk_bytes)}",
        "host memory": f"about {gigabytes(estimate.host_bytes)}",
        "GPU memory": (
            f"about {gigabytes(estimate.gpu.minimum_bytes)} per GPU with one sequence per engine; room for "
            f"{estimate.kv_tokens} KV tokens"
        ),
    }


def full_plan(resolved: ResolvedConfig, folders: Folders) -> tuple[str, Mapping[str, Any]]:
    """All commands of a build and of a start, as text and as JSON values."""
    whole = plan_for(resolved, folders)
    repository = artifact_dir(folders, resolved.model.name, resolved.profile.name) / REPOSITORY
    commands = shown_commands(resolved, repository, folders)
    *before, server = commands
    launch = {
        "before": [list(command.argv) for command in before],
        "argv": list(server.argv),
        "environment": dict(server.shown),
    }
    return full_text(whole, [command.to_text() for command in commands]), {**whole.to_json(), "launch": launch}


def fingerprint(resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
    """Fingerprint of the engines of a config. Its device is the target GPU."""
    whole = plan_for(resolved, checkpoint_hash=checkpoint_hash)
    libraries = {"tensorrt_llm": engine_version(resolved)}
    device = f"cuda-sm{resolved.profile.tensorrt_llm.compute_capability}"
    flags: dict[str, Flag] = {f"engine.{stage.instance.triton_model}": stage.digest for stage in whole.engines}
    return Fingerprint.of(
        resolved, checkpoint_hash, libraries, device, {"conversion": whole.conversion.digest, **flags}
    )


def require_resources(resolved: ResolvedConfig, folder: Path) -> None:
    """Raise BuildError if TensorRT-LLM, GPU, disk or memory is missing or insufficient, or if there are no calibration
    texts."""
    whole = plan_for(resolved)
    texts = calibration_folder(build_context_of(resolved))
    if texts is not None and not texts.is_dir():
        raise BuildError(
            f"tensorrt_llm.calib_dataset: found '{resolved.profile.tensorrt_llm.calib_dataset}'; there is no folder "
            f"{texts}. Correct the path, or name a data set such as 'cnn_dailymail'."
        )
    require_ready(detect(), resolved, whole.world_size)
    require_space(folder, whole.estimate.disk_bytes, f"The engine of {resolved.model.name}", BuildError)
    remedy = "Close other programs, or convert on a larger machine."
    require_memory(whole.estimate.host_bytes, f"Building {resolved.model.name}", remedy, BuildError)


def write_engine(resolved: ResolvedConfig, checkpoint: Checkpoint, note: Note, folder: Path) -> None:
    """Build the engines of a config into `folder`, see `execute`."""
    execute(plan_for(resolved, checkpoint_hash=checkpoint.content_hash), resolved, checkpoint, note, folder)


def execute(
    whole: Plan,
    resolved: ResolvedConfig,
    checkpoint: Checkpoint,
    note: Note,
    folder: Path,
    run: Run = run_process,
) -> None:
    """Run the missing stages of a plan, and put engine/ and tokenizer/ into `folder`.

    With two engines, engine/ has one folder per Triton model. run: function that runs commands. Raises BuildError with
    the end of the log if a stage fails, or with the differences if its result does not match the plan.
    """
    shape = build_context_of(resolved).known_shape
    write_tokenizer(checkpoint, folder / TOKENIZER)  # first, as it may turn out that only code can read it
    run_conversion(whole, checkpoint, resolved.dtype, shape, note, run)
    for stage in whole.engines:
        run_build(whole, stage, note, run)
        share_folder(stage.output, engine_dir(folder / ENGINE, stage.instance, len(whole.engines)))


def full_text(plan: Plan, serving: Sequence[str]) -> str:
    """All commands of a build, and notes. serving: commands that start a server."""
    docker, stage = plan.where != "here", plan.conversion
    lines = [
        "1. source: weights as safetensors (GGUF is converted), config.json with RoPE settings at top level -> "
        f"{stage.source}",
        f"2. conversion ({stage.digest[:12]}) -> {stage.output}",
        f"  {shlex.join(stage.docker_argv if docker else stage.argv)}",
    ]
    for number, engine in enumerate(plan.engines, 3):
        lines += [
            f"{number}. build of {engine.instance.triton_model} ({engine.digest[:12]}) -> {engine.output}",
            f"  {shlex.join(engine.docker_argv if docker else engine.argv)}",
        ]
    lines += ["\nserving", *(f"  {call}" for call in serving), "\nto know", *(f"  - {note}" for note in plan.notes)]
    return "\n".join(lines)


def _engine_line(stage: EngineStage) -> str:
    instance, expected = stage.instance, stage.expected["build_config"]
    line = f"{instance.mode}, max_draft_len {instance.limits.max_draft_len}"
    if instance.lookahead is not None:
        line += f" from W, N, G = {', '.join(map(str, instance.lookahead.sizes))} ({instance.lookahead.origin})"
    return (
        f"{line}; max_seq_len {stage.flags['max_seq_len']} asked, {expected['max_seq_len']} built; batch "
        f"{expected['max_batch_size']}; {expected['max_num_tokens']} tokens per pass; longest prompt "
        f"{instance.limits.longest_prompt}; prompt + output {instance.limits.usable_seq_len}"
    )

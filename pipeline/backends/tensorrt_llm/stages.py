"""Runs the stages of a plan. Skips a stage whose fingerprint is on disk.

A stage empties its folder first, and writes `stage.json` after its result has been checked. So an interrupted or wrong
stage never counts as finished.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm.docker import remove_argv, stage_id
from pipeline.backends.tensorrt_llm.normalize import expected_rotary, normalized
from pipeline.backends.tensorrt_llm.plan import BuildStage, EngineStage, Plan
from pipeline.backends.tensorrt_llm.readback import checkpoint_differences, engine_differences, require_equal
from pipeline.backends.tensorrt_llm.release_data import LOADER_SWITCH
from pipeline.backends.tensorrt_llm.shape import shape_from_config
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import load_weights, write_tokenizer
from pipeline.checkpoint.disk import link_or_copy
from pipeline.checkpoint.model_config import read_config
from pipeline.checkpoint.tokenizer_files import make_portable
from pipeline.config.bare_checkpoint import json_object
from pipeline.config.schema import Dtype, ModelShape
from pipeline.engine.backend import Note
from pipeline.engine.fingerprint import differences
from pipeline.errors import BuildError, CheckpointError
from pipeline.files import end_of_log, write_atomically
from pipeline.server.leftovers import run_clean_up

STAGE = "stage.json"
LOG = "log.txt"

# Runs a command with additional environment variables in a folder, and writes its output to a log. Returns the exit
# code.
Run = Callable[[Sequence[str], Mapping[str, str], Path, Path], int]


def run_process(argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> int:
    """Run a command in a new process, and end it with all its children if this process is interrupted. Raises
    BuildError if it cannot be started."""
    inherited = {name: value for name, value in os.environ.items() if name != LOADER_SWITCH}
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise BuildError(f"{argv[0]} cannot be started: {error.strerror}. Run `lookahead doctor`.") from error
    try:
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def run_conversion(
    plan: Plan, checkpoint: Checkpoint, dtype: Dtype, shape: ModelShape, note: Note, run: Run = run_process
) -> None:
    """Run the stages source and conversion. shape: sizes in the plan. Raises BuildError if they differ."""
    stage = plan.conversion
    if is_done(stage):
        note(f"converted checkpoint: reused ({stage.output})")
        return
    begin(plan, stage)
    config = write_source(checkpoint, dtype, stage.source)
    _require_shape(config, checkpoint, shape)
    stage.request.write_text(json.dumps(stage.call, indent=2) + "\n", encoding="utf-8")
    note(f"conversion: {stage.method} ({stage.folder / LOG})")
    _run(plan, stage, "conversion", run)
    expected = {**stage.expected, **expected_rotary(config)}
    require_equal(checkpoint_differences(stage.output, expected), stage.output, "converted checkpoint")
    finish(stage)


def run_build(plan: Plan, stage: EngineStage, note: Note, run: Run = run_process) -> None:
    """Run the build of one engine. Raises BuildError if it fails, or if the engine differs from the plan."""
    if is_done(stage):
        note(f"engine '{stage.instance.mode}': reused ({stage.output})")
        return
    begin(plan, stage)
    note(f"engine '{stage.instance.mode}': trtllm-build ({stage.folder / LOG})")
    _run(plan, stage, f"build of the '{stage.instance.mode}' engine", run)
    found = engine_differences(stage.output, stage.expected, plan.world_size)
    require_equal(found, stage.output, f"'{stage.instance.mode}' engine")
    finish(stage)


def write_source(checkpoint: Checkpoint, dtype: Dtype, folder: Path) -> dict[str, Any]:
    """Write a checkpoint folder that the converters can read, and return its normalized config.json.

    Weights are linked or copied into the folder, because a container mounts only this one. A GGUF file is converted to
    safetensors. Code of the checkpoint is copied only with model.trust_remote_code."""
    folder.mkdir(parents=True)
    if checkpoint.gguf_file is not None:
        read = read_config(checkpoint.folder, checkpoint.architecture, checkpoint.gguf_file)
        load_weights(checkpoint, read, dtype).save_pretrained(folder)
        write_tokenizer(checkpoint, folder)
    else:
        for path in checkpoint.folder.iterdir():
            if path.is_file() and path.suffix in (".json", ".safetensors", ".model", ".txt", ".jinja"):
                link_or_copy(path.resolve(), folder / path.name)
        make_portable(folder)
    for path in checkpoint.code_files or ():
        link_or_copy(path.resolve(), folder / path.name)
    config = normalized(json_object(folder / "config.json", CheckpointError), str(checkpoint.folder))
    tokenizer = folder / "tokenizer_config.json"
    if checkpoint.code_files is None:
        # The converters run the code that a checkpoint names, even if transformers has the model itself.
        config.pop("auto_map", None)
        if tokenizer.is_file() and "auto_map" in (settings := json_object(tokenizer, CheckpointError)):
            _write_json(tokenizer, {name: value for name, value in settings.items() if name != "auto_map"})
    _write_json(folder / "config.json", config)
    return config


def is_done(stage: BuildStage) -> bool:
    """Whether the stage is finished and its output unchanged. An artifact links to the output, so a damaged engine is
    found here too."""
    try:
        found = json.loads((stage.folder / STAGE).read_text(encoding="utf-8"))
        files = _output_files(stage)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and (found.get("digest"), found.get("files")) == (stage.digest, files)


def begin(plan: Plan, stage: BuildStage) -> None:
    """Empty the folder of a stage. First removes the container of a killed build, which would still write into it."""
    _remove_container(plan, stage)
    shutil.rmtree(stage.folder, ignore_errors=True)
    stage.folder.mkdir(parents=True)


def finish(stage: BuildStage) -> None:
    """Mark a stage as finished, atomically."""
    content = {"digest": stage.digest, "fingerprint": stage.fingerprint, "files": _output_files(stage)}
    write_atomically(stage.folder / STAGE, json.dumps(content, indent=2) + "\n")


def _output_files(stage: BuildStage) -> dict[str, list[int]]:
    """Size and time of the last change of each file of a stage's output."""
    files = sorted(path for path in stage.output.rglob("*") if path.is_file())
    states = ((path.relative_to(stage.output).as_posix(), path.stat()) for path in files)
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states}


def _run(plan: Plan, stage: BuildStage, what: str, run: Run) -> None:
    log, start = stage.folder / LOG, time.monotonic()
    try:
        code = run(stage.argv if plan.where == "here" else stage.docker_argv, plan.environment, stage.folder, log)
    except BaseException:
        _remove_container(plan, stage)
        raise
    if code != 0:
        raise BuildError(
            f"The {what} failed with code {code} after {time.monotonic() - start:.0f} s. {end_of_log(log)}"
        )


def _remove_container(plan: Plan, stage: BuildStage) -> None:
    if plan.where == "docker":
        run_clean_up(remove_argv(stage_id(stage.folder)))


def _require_shape(config: Mapping[str, Any], checkpoint: Checkpoint, shape: ModelShape) -> None:
    found = shape_from_config(config, checkpoint.architecture)
    if found is None:
        raise CheckpointError(
            f"{checkpoint.folder}: config.json lacks sizes of a {checkpoint.architecture}, so it cannot be compared "
            "with model.shape."
        )
    known = found.model_dump(exclude_unset=True)
    if wrong := list(differences(known, shape.model_dump(include=set(known)))):
        raise CheckpointError(f"{checkpoint.folder} differs from model.shape: {'; '.join(wrong)}. Correct model.shape.")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    # A new file, because the old one may be a hard link to the checkpoint's own, which must not change.
    write_atomically(path, json.dumps(value, indent=2) + "\n")

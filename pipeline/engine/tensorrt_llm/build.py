"""The builder of this backend, as `pipeline.engine.builder.EngineBuilder` wants it, and `execute` for a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.checkpoint.disk import require_space
from pipeline.config.places import Places, places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import ENGINE, TOKENIZER, share_folder
from pipeline.engine.builder import Note
from pipeline.engine.fingerprint import Fingerprint
from pipeline.engine.memory import require_memory
from pipeline.engine.tensorrt_llm import rules
from pipeline.engine.tensorrt_llm.case import case_of
from pipeline.engine.tensorrt_llm.conversion import calibration_folder
from pipeline.engine.tensorrt_llm.environment import detect, engine_libraries, require_ready
from pipeline.engine.tensorrt_llm.instance import engine_dir
from pipeline.engine.tensorrt_llm.plan import Plan, plan_for
from pipeline.engine.tensorrt_llm.shape import shape_of
from pipeline.engine.tensorrt_llm.stages import Run, run_build, run_conversion, run_process
from pipeline.engine.tensorrt_llm.text import summary
from pipeline.errors import BuildError
from pipeline.files import write_whole


def check(resolved: ResolvedConfig) -> None:
    """Raises ConfigError with everything that is wrong."""
    rules.check(resolved)


def check_config(resolved: ResolvedConfig, folder: Path) -> None:
    """Raises nothing: what a converter reads, and in which formats, is for it to say."""


def plan(resolved: ResolvedConfig) -> Mapping[str, Any]:
    """The plan in short, and whole under "tensorrt_llm"."""
    whole = plan_for(resolved)
    return {**summary(whole), "tensorrt_llm": whole.to_json()}


def fingerprint(resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
    """Of the engines that a config builds, with the target GPU as device."""
    whole = plan_for(resolved, checkpoint_hash=checkpoint_hash)
    return Fingerprint(
        checkpoint=checkpoint_hash,
        architecture=resolved.model.architecture,
        backend="tensorrt_llm",
        libraries=engine_libraries(resolved),
        device=f"cuda-sm{resolved.profile.tensorrt_llm.compute_capability}",
        dtype=resolved.dtype,
        flags={"conversion": whole.conversion.digest}
        | {f"engine.{stage.instance.triton_model}": stage.digest for stage in whole.engines},
        max_window_size=resolved.lookahead.max_window_size,
        max_ngram_size=resolved.lookahead.max_ngram_size,
        max_verification_set_size=resolved.lookahead.max_verification_set_size,
    )


def require_resources(resolved: ResolvedConfig, folder: Path) -> None:
    """Raises BuildError if TensorRT-LLM, the GPU, disk or memory will not do, or calibration texts are missing."""
    whole = plan_for(resolved)
    texts = calibration_folder(case_of(resolved))
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
    """Write folder/engine and folder/tokenizer."""
    execute(plan_for(resolved, checkpoint_hash=checkpoint.content_hash), resolved, checkpoint, note, folder)


def execute(
    whole: Plan,
    resolved: ResolvedConfig,
    checkpoint: Checkpoint,
    note: Note,
    folder: Path,
    run: Run = run_process,
) -> None:
    """Run the stages of a plan that are not done, and put engine/ and tokenizer/ into `folder`.

    With two engines, engine/ holds one folder per Triton model. run: how calls are run. Raises BuildError with the end
    of the stage's log if one fails, or with the differences if what came out is not what was asked for."""
    shape = shape_of(resolved.model)
    assert shape is not None, "the rules refuse models of unknown shape"
    write_tokenizer(checkpoint, folder / TOKENIZER)  # first, as it may turn out that only code can read it
    run_conversion(whole, checkpoint, resolved.dtype, shape, note, run)
    for stage in whole.engines:
        run_build(whole, stage, note, run)
        share_folder(stage.output, engine_dir(folder / ENGINE, stage.instance, len(whole.engines)))


def write_plan(whole: Mapping[str, Any], resolved: ResolvedConfig, where: Places | None = None) -> Path:
    """A plan as JSON, beside the engines of its model; returns the file."""
    path = (where or places()).engines / resolved.model.name / f"{resolved.profile.name}.plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(whole, indent=2) + "\n")
    return path

"""A stand-in for TensorRT-LLM that writes what the real one would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.backends.tensorrt_llm.build import execute
from pipeline.backends.tensorrt_llm.plan import Plan, plan_for
from pipeline.checkpoint.fetch import fetch
from tests.trt_configs import trt_config
from tests.unit.backends.tensorrt_llm.builder import built_config


class StandIn:
    """Answers the calls of a plan by writing their results. spoil: changes a config.json before it is written."""

    def __init__(self, plan: Plan, spoil=lambda name, config: None, code: int = 0) -> None:
        self.plan, self.spoil, self.code = plan, spoil, code
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> int:
        log.write_text("first line\nlast line\n")
        if self.code:
            return self.code
        if any(word == "trtllm-build" for word in argv):
            stage = next(stage for stage in self.plan.engines if str(stage.output) in argv)
            self.calls.append(f"build {stage.instance.mode}")
            words = argv[list(argv).index("trtllm-build") :]
            checkpoint = json.loads((self.plan.conversion.output / "config.json").read_text())
            config = built_config(words, checkpoint, compute_capability=90)
            self.write(stage.output, config, "engine", "engine")
        else:
            self.calls.append("convert")
            stage = self.plan.conversion
            call = json.loads(Path(argv[-1]).read_text())
            source = json.loads((Path(call["hf_model_dir"]) / "config.json").read_text())
            config = {
                **stage.expected,
                "architecture": source["architectures"][0],
                "logits_dtype": "float32",
                "rotary_base": float(source["rope_theta"]),
            }
            self.write(Path(call["output_dir"]), config, "safetensors", "checkpoint")
        return 0

    def write(self, folder: Path, config: dict, suffix: str, name: str) -> None:
        self.spoil(name, config)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        for rank in range(self.plan.world_size):
            (folder / f"rank{rank}.{suffix}").write_bytes(b"x")


def build(where, run_of, *overrides: str, target: str = "artifact", place: str = "here") -> tuple[StandIn, Path]:
    resolved = trt_config("tiny-random-llama", "latency", *overrides)
    checkpoint = fetch(resolved.model, where.cache)
    plan = replace(plan_for(resolved, where, checkpoint.content_hash), where=place)
    run = run_of(plan)
    folder = where.engines / target
    execute(plan, resolved, checkpoint, silent, folder, run)
    return run, folder


def silent(text: str) -> None:
    """Print nothing: the progress function of these builds."""

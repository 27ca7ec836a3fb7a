"""Prints a plan as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pipeline.backends.tensorrt_llm.plan import EngineStage, Plan
from pipeline.checkpoint.disk import gigabytes

_WHERE = {
    "here": "TensorRT-LLM of this machine",
    "docker": "docker, as TensorRT-LLM is not installed here",
    "nowhere": "neither TensorRT-LLM nor docker is here: run the calls below in the container",
}


def summary(plan: Plan) -> dict[str, str]:
    """Main facts of a plan, one line each."""
    estimate = plan.estimate
    return {
        "speculation": plan.speculation,
        "runs on": _WHERE[plan.where],
        "container": f"{plan.image} (TensorRT-LLM {plan.version})",
        "ranks": str(plan.world_size),
        "conversion": f"{plan.conversion.method} -> {plan.conversion.output}",
        **{f"engine {stage.instance.triton_model}": _engine_line(stage) for stage in plan.engines},
        "disk": f"about {gigabytes(estimate.disk_bytes)}",
        "host memory": f"about {gigabytes(estimate.host_bytes)}",
        "GPU memory": (
            f"about {gigabytes(estimate.gpu.minimum_bytes)} per GPU with one sequence per engine; room for "
            f"{estimate.kv_tokens} KV tokens"
        ),
    }


def full_text(plan: Plan, serving: Sequence[str]) -> str:
    """The complete plan: main facts, all commands, and notes. serving: commands that start a server."""
    return "\n".join(_lines(plan, serving))


def _lines(plan: Plan, serving: Sequence[str]) -> Iterator[str]:
    yield f"TensorRT-LLM plan: {plan.model} under {plan.profile}, from {plan.checkpoint}"
    yield from (f"  {name}: {value}" for name, value in summary(plan).items())
    docker = plan.where != "here"
    stage = plan.conversion
    yield (
        "\n1. source: weights as safetensors (GGUF is converted), config.json with RoPE settings at top level -> "
        f"{stage.source}"
    )
    yield f"2. conversion ({stage.digest[:12]}) -> {stage.output}"
    yield f"  {shlex.join(stage.docker_argv if docker else stage.argv)}"
    for number, engine in enumerate(plan.engines, 3):
        yield f"{number}. build of {engine.instance.triton_model} ({engine.digest[:12]}) -> {engine.output}"
        yield f"  {shlex.join(engine.docker_argv if docker else engine.argv)}"
    yield "\nserving"
    yield from (f"  {call}" for call in serving)
    yield "\nto know"
    yield from (f"  - {note}" for note in plan.notes)


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

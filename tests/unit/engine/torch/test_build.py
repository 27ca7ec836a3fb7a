"""int8 and bfloat16 engines: built beside plain ones, smaller, and refused where they would not work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pipeline.bench.contenders.baselines import load_baselines
from pipeline.bench.data.workload import Prompt
from pipeline.config.folders import Folders
from pipeline.config.hardware import Hardware
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.plan import engine_plan
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import Submission
from pipeline.engine.torch.build import token_entries
from pipeline.engine.torch.lean.plan import SMOOTHING_VERSION, WEIGHTS
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.load import load_engine
from pipeline.errors import BuildError, ConfigError
from pipeline.tuning.planned_engine import planned_engine
from tests.fakes import make_request
from tests.unit.config.shipped import CPU, H100, SHIPPED

# A GPU without TensorRT-LLM.
GPU = Hardware(gpu="H100", compute_capability=90, has_tensorrt_llm=False)
INT8 = "engine.quantization=int8"


def tiny(*overrides: str, profile: str = "latency", hardware: Hardware = CPU) -> ResolvedConfig:
    return resolve_config(
        "tiny-random-llama", profile, ("drafting.planner=fixed", *overrides), where=SHIPPED, hardware=hardware
    )


def test_an_int8_engine_is_a_build_of_its_own_and_shared_by_profiles_that_want_it(where: Folders) -> None:
    plain = planned_engine(tiny(), where)
    quantized = planned_engine(tiny(INT8), where)
    assert (plain.outcome, quantized.outcome) == ("built", "built")
    assert planned_engine(tiny(INT8, profile="balanced"), where).outcome == "shared"
    assert planned_engine(tiny(INT8), where).outcome == "reused"
    assert quantized.artifact.manifest.fingerprint.flags["engine.quantization"] == "int8"
    assert planned_engine(tiny(), where).outcome == "built"


def test_the_files_hold_int8_and_the_plan_says_so(where: Folders) -> None:
    artifact = planned_engine(tiny(INT8), where).artifact
    with safe_open(artifact.engine_dir / "model.safetensors", "pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert kinds["head.weight"] == kinds["qkv.weight"] == "I8"
    assert kinds["head.scale"] == kinds["final_norm"] == "F32"
    assert "embedding" not in kinds, "the output layer has the same weight"
    plan = engine_plan(tiny(INT8), where)
    assert "int8" in plan["weights"]
    assert plan["pass"] == "lean"


def test_an_int8_engine_has_factors_between_activations_and_weights(where: Folders) -> None:
    plain = planned_engine(tiny(), where).artifact
    norms = map_weights(plain.engine_dir / WEIGHTS)["input_norm"]
    quantized = planned_engine(tiny(INT8), where).artifact
    assert (map_weights(quantized.engine_dir / WEIGHTS)["input_norm"] != norms).mean() > 0.9
    assert "smoothing" not in plain.manifest.fingerprint.flags
    assert (
        token_entries(quantized.manifest.fingerprint)["engine.quantization"] == f"int8, smoothing {SMOOTHING_VERSION}"
    )


def test_bfloat16_matrices_are_stored_as_such_beside_float32_norms(where: Folders) -> None:
    config = tiny("model.dtype=bfloat16")
    with safe_open(planned_engine(config, where).artifact.engine_dir / "model.safetensors", "pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert kinds["head.weight"] == kinds["qkv.weight"] == "BF16"
    assert kinds["qkv.bias"] == kinds["final_norm"] == "F32"
    plan = engine_plan(config, where)
    assert "bfloat16" in plan["weights"]
    assert plan["pass"] == "lean"
    assert engine_plan(tiny("model.dtype=float16"), where)["pass"] == "transformers"


def test_families_beyond_the_lean_pass_keep_transformers_files(where: Folders) -> None:
    config = tiny(INT8, "model.architecture=StableLmForCausalLM")
    artifact = planned_engine(config, where).artifact
    with safe_open(artifact.engine_dir / "model.safetensors", "pt") as file:
        assert "model.embed_tokens.weight" in file.keys()  # noqa: SIM118 (no mapping)
    assert engine_plan(config, where)["pass"] == "transformers"


@pytest.mark.parametrize("settings", [(), (INT8,), ("model.dtype=bfloat16",)])
def test_drafts_change_no_token_of_it_and_transformers_agrees(where: Folders, settings: tuple[str, ...]) -> None:
    artifact = planned_engine(tiny(*settings), where).artifact
    engine = load_engine(artifact)
    prompt = np.random.default_rng(0).integers(0, 256, 30).tolist()

    def run(strategy: str) -> list[int]:
        request = make_request(prompt, 24)
        (result,) = create_scheduler(artifact, engine).run([Submission(request, strategy)])
        return result.output_ids

    plain = run("none")
    assert run("hybrid") == plain
    (baseline,) = load_baselines(["hf"], artifact.engine_dir, artifact.resolved.dtype, "cpu", 4096, "int8")
    output_ids = baseline.generate(make_request(prompt, 24), Prompt(("",))).output_ids
    # The baseline has the same weights and rows of another type, so that it may leave the output at a near-tie.
    assert output_ids == plain if not settings else output_ids[0] == plain[0]
    assert len(run("lookahead")) == len(plain) == 24


def test_what_cannot_be_quantized_is_refused_before_anything_is_fetched(where: Folders) -> None:
    with pytest.raises(
        BuildError, match=r"'int8' is not supported for .* GPT2LMHeadModel keeps its weights transposed"
    ):
        planned_engine(tiny(INT8, "model.architecture=GPT2LMHeadModel"), where)
    with pytest.raises(BuildError, match="runs on the CPU only so far, and the device is cuda"):
        planned_engine(tiny(INT8, hardware=GPU), where)
    with pytest.raises(BuildError, match=r"computes in float32, and model\.dtype is 'bfloat16'"):
        planned_engine(tiny(INT8, "model.dtype=bfloat16"), where)
    assert not list(where.cache.rglob("*.safetensors"))


def test_tensorrt_llm_has_a_setting_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"engine\.quantization: found 'int8'.*tensorrt_llm\.quantization: int8_wo"):
        tiny(INT8, "backend=tensorrt_llm", hardware=H100)


def test_a_cpu_without_the_kernels_is_refused_with_a_remedy(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = planned_engine(tiny(INT8, "model.architecture=StableLmForCausalLM"), where).artifact
    monkeypatch.setattr("pipeline.engine.torch.load_transformers.can_quantize", lambda: False)
    with pytest.raises(BuildError, match=r"FBGEMM.*engine\.quantization=none"):
        load_engine(artifact)


def test_a_model_larger_than_the_gpu_is_refused(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = planned_engine(tiny("model.dtype=float16"), where).artifact

    def allocate(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("pipeline.engine.torch.load_transformers.engine_over", allocate)
    with pytest.raises(BuildError, match=r"in float16 with its KV cache does not fit .* Lower engine\.max_batch_size"):
        load_engine(artifact)


def test_the_plan_says_which_code_computes_a_pass_on_a_gpu(where: Folders) -> None:
    assert engine_plan(tiny(hardware=GPU), where)["pass"] == "gpu"
    assert engine_plan(tiny("model.architecture=GPT2LMHeadModel", hardware=GPU), where)["pass"] == "transformers"
    sharded = tiny("model.parallelism.tensor=2", hardware=GPU)
    assert engine_plan(sharded, where)["pass"] == "transformers"

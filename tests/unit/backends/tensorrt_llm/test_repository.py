"""Repositories with TensorRT-LLM's C++ backend: the contract tensor by tensor, every parameter, and golden files.

Golden files hold the settings of each model; tensors, which are the same for all, lie in one file. After a change that
is meant, write them again with REGENERATE_GOLDEN=1 and read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.backends.tensorrt_llm.release_data import release
from pipeline.config.folders import folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.repository.contract import model_contract
from pipeline.repository.render import model_configs, render
from tests.trt_configs import SPECULATIONS, trt_config
from tests.unit.repository.test_model_config import (
    CONTRACT_OF,
    EXTRA,
    SERVED,
    as_served,
    expected_inputs,
    parsed,
    tensors_of,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "tensorrt_llm"
GOLDEN_CONFIGS = [
    (model, profile, "lookahead")
    for model in ("llama2-13b", "qwen2.5-coder-7b", "smollm2-135m")
    for profile in ("balanced", "latency", "throughput")
] + [("llama2-13b", "latency", speculation) for speculation in ("trie", "none", "both")]


def rendered(folder: Path, resolved: ResolvedConfig) -> dict[str, pb.ModelConfig]:
    """The repository on disk, read back with Triton's own protobuf."""
    manifest = SimpleNamespace(fingerprint_digest="sha256:0")
    artifact = Artifact(folder / "artifact", manifest, resolved)  # type: ignore[arg-type]
    for name in ("", "tensorrt_llm_engine", "tensorrt_llm_lookahead"):
        engine = artifact.engine_dir / name
        engine.mkdir(parents=True, exist_ok=True)
        (engine / "config.json").write_text(json.dumps({"pretrained_config": {"vocab_size": 512}}))
    repository = folder / "repository"
    render(resolved, artifact, repository, folders().home / "triton_repo")
    return {config.name: parsed(repository / config.name) for config in model_configs(resolved, artifact)}


def values(config: pb.ModelConfig) -> dict[str, str]:
    return {name: entry.string_value for name, entry in config.parameters.items()}


# Golden files have the other pairs of model and profile.
@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize(("model", "profile"), [("llama2-13b", "latency"), ("smollm2-135m", "throughput")])
def test_every_repository_keeps_the_contract_tensor_by_tensor(tmp_path, model, profile, speculation):
    resolved = trt_config(model, profile, f".speculation={speculation}")
    configs = rendered(tmp_path, resolved)

    engines = ["tensorrt_llm_engine", "tensorrt_llm_lookahead"] if speculation == "both" else ["tensorrt_llm_engine"]
    assert set(configs) == {*SERVED, *engines}
    for name, config in configs.items():
        served = "tensorrt_llm_engine" if name in engines else name
        contract = model_contract(CONTRACT_OF[served])
        inputs, outputs = EXTRA["tensorrt_llm_bls"] if "bls" in name else ((), ())
        assert tensors_of(config.input) == expected_inputs(served, inputs)
        assert tensors_of(config.output) == as_served(served, *contract.outputs, *outputs)
        assert [entry.name for entry in config.output][: len(contract.outputs)] == [t.name for t in contract.outputs]
        assert config.max_batch_size == resolved.profile.engine.max_batch_size
        assert not any("${" in value for value in values(config).values())
        if name not in engines:
            continue
        assert config.backend == "tensorrtllm"
        assert config.model_transaction_policy.decoupled
        assert set(values(config)) <= contract.parameters
        assert contract.required_parameters <= set(values(config))
        # What has a default is stated, so that nothing depends on the container.
        assert {n for n, entry in release().parameters.items() if entry.default is not None} <= set(values(config))
        assert list((tmp_path / "repository" / name / "1").iterdir()) == []
    front = values(configs["lookahead_bls"])
    assert front["tensorrt_llm_model_name"] == "tensorrt_llm_engine"
    assert front.get("tensorrt_llm_lookahead_model_name") == ("tensorrt_llm_lookahead" if len(engines) > 1 else None)


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_the_mode_and_its_numbers_stand_only_where_they_are_meant(tmp_path, speculation):
    configs = rendered(tmp_path, trt_config("llama2-13b", "latency", f".speculation={speculation}"))
    names = ("decoding_mode", "lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    found = {
        name: [values(config).get(key) for key in names]
        for name, config in configs.items()
        if config.backend == "tensorrtllm"
    }

    lookahead, trie, plain = ["lookahead", "10", "5", "10"], [None] * 4, ["top_k_top_p", None, None, None]
    assert (
        found
        == {
            "lookahead": {"tensorrt_llm_engine": lookahead},
            "trie": {"tensorrt_llm_engine": trie},
            "none": {"tensorrt_llm_engine": plain},
            "both": {"tensorrt_llm_engine": trie, "tensorrt_llm_lookahead": lookahead},
        }[speculation]
    )


def test_values_have_the_types_that_the_backend_reads(tmp_path):
    """It keeps its default without a word where it cannot read a value."""
    target = values(rendered(tmp_path, trt_config("llama2-13b", "latency"))["tensorrt_llm_engine"])
    readers = {"bool": lambda text: {"true": 1, "false": 0}[text], "int": int, "uint": int, "float": float}
    for name, text in target.items():
        entry = release().parameters[name]
        readers.get(entry.type.split(";")[0].split(" ")[0], str)(text)
        assert not entry.choices or text == "" or text in map(str, entry.choices), name
    for name in ("guided_decoding_backend", "xgrammar_tokenizer_info_path"):
        assert target[name] == ""
    assert target["gpt_model_type"] == "inflight_fused_batching"


def test_settings_of_the_profile_arrive(tmp_path):
    overrides = (
        "model.parallelism.tensor=2", ".speculation=trie", ".enable_chunked_context=true",
        ".batch_scheduler_policy=max_utilization",
        ".kv_cache_host_memory_bytes=1024", ".kv_cache_free_gpu_mem_fraction=0.5", ".parameters.cuda_graph_mode=true",
        ".parameters.gpu_device_ids='0,1'", "scheduling.max_queue_size=7", "scheduling.max_queue_delay_microseconds=11",
    )  # fmt: skip
    target = rendered(tmp_path, trt_config("llama2-13b", "latency", *overrides))["tensorrt_llm_engine"]

    expected = {
        "enable_chunked_context": "true", "batch_scheduler_policy": "max_utilization", "gpu_device_ids": "0,1",
        "kv_cache_host_memory_bytes": "1024", "kv_cache_free_gpu_mem_fraction": "0.5", "cuda_graph_mode": "true",
        "enable_kv_cache_reuse": "true", "exclude_input_in_output": "false",
    }  # fmt: skip
    assert {name: values(target)[name] for name in expected} == expected
    assert target.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert target.dynamic_batching.max_queue_delay_microseconds == 11


def test_engines_beside_an_orchestrator_get_their_ranks(tmp_path):
    overrides = ("model.parallelism.tensor=2", ".speculation=both", ".orchestrator=true")
    spawned = rendered(tmp_path / "spawned", trt_config("llama2-13b", "latency", *overrides))
    beside = rendered(tmp_path / "beside", trt_config("llama2-13b", "latency", *overrides, ".spawn_processes=false"))

    for name, ranks in (("tensorrt_llm_engine", "1,2"), ("tensorrt_llm_lookahead", "3,4")):
        assert "participant_ids" not in values(spawned[name])
        assert values(beside[name])["participant_ids"] == ranks


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_two_engines_split_the_memory(tmp_path, share):
    overrides = (".speculation=both", f".lookahead_kv_share={share}")
    configs = rendered(tmp_path, trt_config("llama2-13b", "latency", *overrides))
    trie, lookahead = (values(configs[name]) for name in ("tensorrt_llm_engine", "tensorrt_llm_lookahead"))

    fractions = [float(entry["kv_cache_free_gpu_mem_fraction"]) for entry in (trie, lookahead)]
    tokens = [int(entry["max_tokens_in_paged_kv_cache"]) for entry in (trie, lookahead)]
    assert fractions == pytest.approx([0.9 * (1 - share), 0.9 * share])
    assert tokens[1] / sum(tokens) == pytest.approx(share, abs=0.01)
    assert all(count % 32 == 0 for count in tokens)
    assert trie["gpt_model_path"] != lookahead["gpt_model_path"]


@pytest.mark.parametrize(("model", "profile", "speculation"), GOLDEN_CONFIGS)
def test_golden(tmp_path, model, profile, speculation):
    configs = rendered(tmp_path, trt_config(model, profile, f".speculation={speculation}"))
    parts = []
    for name, config in configs.items():
        settings = pb.ModelConfig()
        settings.CopyFrom(config)
        for field in ("input", "output", "ensemble_scheduling"):
            settings.ClearField(field)
        parts.append(f"# {name}: {len(config.input)} inputs, {len(config.output)} outputs\n")
        parts.append(text_format.MessageToString(settings).replace(str(tmp_path), ""))
    agrees(GOLDEN / f"{model}.{profile}.{speculation}.pbtxt", "".join(parts))


def test_golden_tensors(tmp_path):
    lines = []
    for name, config in rendered(tmp_path, trt_config("llama2-13b", "latency", ".speculation=both")).items():
        for kind, entries in (
            ("input", config.input),
            ("output", config.output),
            ("step", config.ensemble_scheduling.step),
        ):
            lines += [f"{name} {kind} {text_format.MessageToString(entry, as_one_line=True)}\n" for entry in entries]
    agrees(GOLDEN / "tensors.txt", "".join(lines))


def agrees(path: Path, text: str) -> None:
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "read the difference; if it is meant, REGENERATE_GOLDEN=1"

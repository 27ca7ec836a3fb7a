"""Every config.pbtxt of every shipped model under every profile keeps TensorRT-LLM's contract."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.config.folders import folders
from pipeline.config.loading import RESOLVED, names_in
from pipeline.config.resolution import load_resolved, resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import backend_of
from pipeline.errors import RepositoryError
from pipeline.repository import model_config
from pipeline.repository.contract import Tensor, model_contract
from pipeline.repository.extra_tensors import (
    LOOKAHEAD_BLS_INPUTS,
    LOOKAHEAD_BLS_OUTPUTS,
    TENSORRT_LLM_INPUTS,
    TENSORRT_LLM_OUTPUTS,
)
from pipeline.repository.render import (
    check_repository,
    model_configs,
    render,
    repository_dir,
    require_replaceable,
)

# Of which of TensorRT-LLM's models each of ours is an extension.
CONTRACT_OF = {
    "preprocessing": "preprocessing",
    "tensorrt_llm_engine": "tensorrt_llm",
    "tensorrt_llm": "tensorrt_llm",
    "postprocessing": "postprocessing",
    "lookahead_bls": "tensorrt_llm_bls",
    "tensorrt_llm_bls": "tensorrt_llm_bls",
    "ensemble": "ensemble",
}
SERVED = tuple(CONTRACT_OF)
EXTRA = {
    "tensorrt_llm": (TENSORRT_LLM_INPUTS, TENSORRT_LLM_OUTPUTS),
    "tensorrt_llm_bls": (LOOKAHEAD_BLS_INPUTS, LOOKAHEAD_BLS_OUTPUTS),
}
TEXT_MODELS = ("lookahead_bls", "tensorrt_llm_bls", "ensemble")
CODE_OF = {
    "tensorrt_llm": "single_response",
    "tensorrt_llm_bls": "single_response",
    "preprocessing": "text_conversion",
    "postprocessing": "text_conversion",
}
DECOUPLED = {"tensorrt_llm_engine", "lookahead_bls"}


def expected_inputs(name: str, extra: tuple[Tensor, ...] = ()) -> dict[str, Tensor]:
    """Inputs of the contract; those of text models are optional, so that a missing one is named."""
    inputs = model_contract(CONTRACT_OF[name]).inputs
    if name in TEXT_MODELS:
        inputs = tuple(replace(tensor, optional=True) for tensor in inputs)
    return as_served(name, *inputs, *extra)


def as_served(name: str, *tensors: Tensor) -> dict[str, Tensor]:
    """Tensors by name; models that pass requests on see the shapes that clients send."""
    passes_on = name in ("tensorrt_llm", "tensorrt_llm_bls")
    return {tensor.name: replace(tensor, reshape=None) if passes_on else tensor for tensor in tensors}


def fake_artifact(folder: Path, resolved: ResolvedConfig) -> Artifact:
    """An artifact as far as rendering looks at it: its folders, and a config.json that states the vocabulary."""
    (folder / "engine").mkdir(parents=True, exist_ok=True)
    (folder / "engine" / "config.json").write_text(json.dumps({"vocab_size": 512}))
    manifest = SimpleNamespace(fingerprint_digest="sha256:0")
    return Artifact(folder, manifest, resolved)  # type: ignore[arg-type]


def torch_config(model: str, profile: str, *overrides: str) -> ResolvedConfig:
    return resolve_config(model, profile, ("backend=torch", "device=cpu", *overrides))


def tensors_of(entries: object) -> dict[str, Tensor]:
    return {
        entry.name: Tensor(
            entry.name,
            pb.DataType.Name(entry.data_type),
            tuple(entry.dims),
            getattr(entry, "optional", False),
            tuple(entry.reshape.shape) if entry.HasField("reshape") else None,
            getattr(entry, "allow_ragged_batch", False),
        )
        for entry in entries  # type: ignore[attr-defined]
    }


def parsed(model_dir: Path) -> pb.ModelConfig:
    """The config of a model on disk, read with Triton's own protobuf."""
    return text_format.Parse((model_dir / "config.pbtxt").read_text(), pb.ModelConfig())


@pytest.mark.parametrize(("model", "profile"), zip(names_in(folders().models), cycle(names_in(folders().profiles))))
def test_every_model_and_profile_renders_configs_that_keep_the_contract(tmp_path, model, profile):
    resolved = torch_config(model, profile)
    repository = tmp_path / "out"
    render(resolved, fake_artifact(tmp_path / "artifact", resolved), repository, folders().home / "triton_repo")

    assert check_repository(repository) == tuple(sorted(SERVED))
    assert load_resolved(repository / RESOLVED) == resolved
    for name in SERVED:
        config = parsed(repository / name)
        contract = model_contract(CONTRACT_OF[name])
        extra_inputs, extra_outputs = EXTRA.get(CONTRACT_OF[name], ((), ()))
        assert tensors_of(config.input) == expected_inputs(name, extra_inputs)
        assert tensors_of(config.output) == as_served(name, *contract.outputs, *extra_outputs)
        assert config.max_batch_size == resolved.profile.engine.max_batch_size
        assert contract.required_parameters <= set(config.parameters)
        assert (repository / name / "1").is_dir()
        if name != "ensemble":
            assert config.backend == "python"
            source = folders().home / "triton_repo" / CODE_OF.get(name, name) / "1" / "model.py"
            assert (repository / name / "1" / "model.py").read_text() == source.read_text()


def test_tensors_of_ours_are_optional_inputs_and_new_names():
    for name, (inputs, outputs) in EXTRA.items():
        contract = model_contract(name)
        assert all(tensor.optional for tensor in inputs)
        assert not {tensor.name for tensor in inputs} & {tensor.name for tensor in contract.inputs}
        assert not {tensor.name for tensor in outputs} & {tensor.name for tensor in contract.outputs}


def test_numbers_of_tensors_are_those_of_the_release():
    counts = {
        name: (len(model_contract(name).inputs), len(model_contract(name).outputs)) for name in CONTRACT_OF.values()
    }

    assert counts == {
        "preprocessing": (14, 20),
        "tensorrt_llm": (62, 21),
        "postprocessing": (2, 1),
        "tensorrt_llm_bls": (43, 19),
        "ensemble": (36, 19),
    }


def test_settings_of_the_profile_arrive_in_the_configs(tmp_path):
    resolved = torch_config(
        "tiny-random-llama",
        "latency",
        "engine.max_batch_size=3",
        "scheduling.max_queue_size=7",
        "scheduling.bls_instances=2",
        "scheduling.tokenizer_instances=4",
        "scheduling.max_queue_delay_microseconds=11",
    )
    configs = {config.name: config for config in model_configs(resolved, fake_artifact(tmp_path, resolved))}

    target = configs["tensorrt_llm_engine"]
    assert not target.dynamic_batching.HasField("default_queue_policy")  # the engine's own queue is bounded
    assert configs["preprocessing"].dynamic_batching.default_queue_policy.max_queue_size == 7
    assert target.dynamic_batching.max_queue_delay_microseconds == 11
    assert list(target.dynamic_batching.preferred_batch_size) == [3]
    assert target.instance_group[0].count == 1
    assert configs["lookahead_bls"].instance_group[0].count == 2
    assert configs["preprocessing"].instance_group[0].count == 4
    assert configs["lookahead_bls"].parameters["vocab_size"].string_value == "512"


def test_folder_names_with_quotes_and_colons_survive_the_text_form(tmp_path):
    resolved = torch_config("tiny-random-llama", "latency")
    artifact = fake_artifact(tmp_path / 'odd "name": {x}\n', resolved)

    config = text_format.Parse(model_config.to_text(model_config.python_target(resolved, artifact)), pb.ModelConfig())

    assert config.parameters["gpt_model_path"].string_value == str(artifact.engine_dir)


def test_rendering_again_replaces_what_was_there_and_a_failure_leaves_it(tmp_path):
    resolved = torch_config("tiny-random-llama", "latency")
    artifact, source = fake_artifact(tmp_path / "artifact", resolved), folders().home / "triton_repo"
    out = repository_dir(artifact)
    render(resolved, artifact, out, source)
    (out / "stale").mkdir()
    render(resolved, artifact, out, source)
    assert not (out / "stale").exists()

    with pytest.raises(RepositoryError, match=r"no model\.py"):
        render(resolved, artifact, out, tmp_path / "nowhere")

    assert check_repository(out)


def test_only_a_repository_of_this_program_is_replaced(tmp_path):
    repository, folder, file = tmp_path / "repository", tmp_path / "folder", tmp_path / "file"
    resolved = torch_config("tiny-random-llama", "latency")
    render(resolved, fake_artifact(tmp_path / "artifact", resolved), repository, folders().home / "triton_repo")
    folder.mkdir()
    file.touch()
    for harmless in (repository, folder, tmp_path / "new"):
        require_replaceable(harmless)

    (repository / "my_own_model").mkdir()
    (folder / "letter.txt").touch()

    for path, found in ((repository, "my_own_model"), (folder, "letter.txt")):
        with pytest.raises(RepositoryError, match=f"{path} contains {found}, and would be replaced"):
            require_replaceable(path)
    with pytest.raises(RepositoryError, match=f"{file} is a file"):
        require_replaceable(file)


def test_an_engine_without_vocab_size_is_refused(tmp_path):
    resolved = torch_config("tiny-random-llama", "latency")
    artifact = fake_artifact(tmp_path, resolved)
    (artifact.engine_dir / "config.json").write_text("{}")

    with pytest.raises(RepositoryError, match="vocab_size"):
        model_configs(resolved, artifact)


def test_a_broken_config_is_named(tmp_path):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "config.pbtxt").write_text('name: "x" nonsense')

    with pytest.raises(RepositoryError, match=r"config\.pbtxt"):
        check_repository(tmp_path)
    with pytest.raises(RepositoryError, match="no model repository"):
        check_repository(tmp_path / "empty")


def test_models_under_stock_names_answer_once_and_pass_requests_on(tmp_path):
    resolved = torch_config("tiny-random-llama", "latency", "engine.max_batch_size=3", "scheduling.max_queue_size=7")
    configs = {config.name: config for config in model_configs(resolved, fake_artifact(tmp_path, resolved))}

    assert {name for name, config in configs.items() if config.model_transaction_policy.decoupled} == DECOUPLED
    for name, working in (("tensorrt_llm", "tensorrt_llm_engine"), ("tensorrt_llm_bls", "lookahead_bls")):
        stock = configs[name]
        for own, passed in ((stock.input, configs[working].input), (stock.output, configs[working].output)):
            assert tensors_of(own) == as_served(name, *tensors_of(passed).values())
        assert stock.parameters["model_name"].string_value == working
        assert stock.parameters["max_requests"].string_value == "10"
    (step,) = configs["ensemble"].ensemble_scheduling.step
    assert step.model_name == "tensorrt_llm_bls"
    assert all(inner == outer for inner, outer in (*step.input_map.items(), *step.output_map.items()))


def test_a_strict_target_offers_tensorrt_llms_tensors_and_no_others(tmp_path):
    resolved = torch_config(
        "tiny-random-llama", "latency", "engine.strict_tensorrt_llm=true", "tensorrt_llm.speculation=trie"
    )
    (config,) = backend_of("torch").target_configs(resolved, fake_artifact(tmp_path, resolved))
    contract = model_contract("tensorrt_llm")

    assert tensors_of(config.input) == {tensor.name: tensor for tensor in contract.inputs}
    assert tensors_of(config.output) == {tensor.name: tensor for tensor in contract.outputs}
    assert config.parameters["strict_tensorrt_llm"].string_value == "trie"

"""Files of the user: base, name, and all kinds of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.resolution import load_model_config, resolve_config
from tests.unit.config.shipped import CPU, SHIPPED, faults_of, write


def test_unknown_names_are_answered_with_a_suggestion_and_the_list() -> None:
    text = faults_of(model="smolm2-135m")
    assert "Did you mean 'smollm2-135m'?" in text
    assert "tiny-random-llama" in text
    assert "Did you mean 'llama3.1-8b'?" in faults_of(model="llama3")
    assert "Did you mean 'latency'?" in faults_of(profile="latncy")


def test_a_model_yaml_of_the_users_own_takes_its_base_and_its_lines_are_named(tmp_path: Path) -> None:
    write(tmp_path / "family.yaml", {"architecture": "LlamaForCausalLM", "num_parameters": 10, "dtype": "bfloat16"})
    own = write(
        tmp_path / "mine.yaml",
        "base: family.yaml\nnum_parameters: 20\nmax_position_embeddings: 8192\n"
        "checkpoint: {source: local, path: weights}\n",
    )
    resolved = resolve_config(str(own), "latency", where=SHIPPED, hardware=CPU)
    assert (resolved.model.name, resolved.model.num_parameters, resolved.dtype) == ("mine", 20, "bfloat16")
    assert resolved.model.checkpoint.path == str(Path.cwd() / "weights")  # type: ignore[union-attr]

    write(tmp_path / "family.yaml", "architecture: LlamaForCausalLM\nnum_parameters: 10\ndtypo: float32\n")
    text = faults_of(model=str(own))
    assert "family.yaml:3: model.dtypo: unknown key. Did you mean 'dtype'?" in text


def test_a_checkpoint_of_another_source_replaces_that_of_the_base(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", {"checkpoint": {"source": "hub", "repo_id": "a/b", "revision": "main"}})
    own = write(
        tmp_path / "own.yaml",
        {
            "base": "base.yaml",
            "architecture": "LlamaForCausalLM",
            "num_parameters": 1,
            "max_position_embeddings": 4096,
            "checkpoint": {"source": "gguf", "path": "/x.gguf"},
        },
    )
    assert load_model_config(str(own), SHIPPED).checkpoint.source == "gguf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1\n- 2\n", "should contain keys and values; found a list"),
        ("dtype: float32\ndtype: float16\n", "dtype: is written twice"),
        ("base: nowhere.yaml\n", "there is no file"),
        ("base: latency\n", "Did you mean 'latency.yaml'?"),
        ("name: other\n", "should be 'own', the name of the file"),
        ("", "architecture: is missing"),
        ("~\n", "architecture: is missing"),
        (
            "description: no\n",
            "own.yaml:1: model.description: found false, which YAML also reads yes, no",
        ),
        ("on: 1\n", "own.yaml:1: model.on: unknown key"),
        ("a: &a [*a]\n", "own.yaml is not valid YAML: lists and mappings are nested too deeply, or an anchor"),
    ],
)
def test_broken_files(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in faults_of(model=str(write(tmp_path / "own.yaml", text)))


@pytest.mark.parametrize("name", ["own", "latency"])
def test_a_profile_of_the_users_own_takes_the_rest_of_a_shipped_one(name: str, tmp_path: Path) -> None:
    own = write(tmp_path / f"{name}.yaml", "base: latency.yaml\nserver:\n  host: 0.0.0.0\n")
    shipped = resolve_config("smollm2-135m", "latency", where=SHIPPED, hardware=CPU).profile
    profile = resolve_config("smollm2-135m", str(own), where=SHIPPED, hardware=CPU).profile
    assert (profile.name, profile.server.host) == (name, "0.0.0.0")
    assert (profile.engine, profile.drafting) == (shipped.engine, shipped.drafting)


def test_a_base_has_no_base_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "one.yaml", "base: two.yaml\n")
    assert "a base cannot have a base itself" in faults_of(model=str(write(tmp_path / "own.yaml", "base: one.yaml\n")))


def test_an_invalid_model_name_is_reported_with_a_remedy(tmp_path: Path) -> None:
    assert "rename the file" in faults_of(model=str(write(tmp_path / "My Model.yaml", "dtype: float32\n")))


def test_an_empty_name_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert faults_of(model="").startswith("The name of the model is empty.")
    assert faults_of(profile=" ").startswith("The name of the profile is empty.")


def test_a_file_that_is_no_model_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    assert "'folder/config.json' is not a model. Give a name of" in faults_of(model="folder/config.json")
    assert "'model.safetensors' is not a model. Give a name of" in faults_of(model="model.safetensors")
    assert "/model.safetensors' is not a model. Give a name of" in faults_of(model=f"{tmp_path}/model.safetensors")
    assert f"'{tmp_path}/' is not a profile. Give a name of" in faults_of(profile=f"{tmp_path}/")
    assert "the path does not exist. Give a name of" in faults_of(model="./nothing")

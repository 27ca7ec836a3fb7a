"""Folders of configs, engines and downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.folders import SHIPPED, folders
from pipeline.config.loading import find_model, names_in
from pipeline.config.resolution import load_model_config
from pipeline.errors import ConfigError


def test_folders_follow_the_environment(tmp_path: Path) -> None:
    found = folders({"LOOKAHEAD_ENGINES": str(tmp_path / "e"), "LOOKAHEAD_CACHE": str(tmp_path / "c")})
    assert (found.engines, found.cache) == (tmp_path / "e", tmp_path / "c")
    assert folders({"XDG_CACHE_HOME": str(tmp_path)}).cache == tmp_path / "lookahead"
    assert found.home == SHIPPED
    with pytest.raises(ConfigError, match="LOOKAHEAD_HOME"):
        folders({"LOOKAHEAD_HOME": str(tmp_path)})


def test_engines_that_cannot_be_written_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"LOOKAHEAD_ENGINES": str(tmp_path / "e"), "LOOKAHEAD_CACHE": str(tmp_path / "c")}
    monkeypatch.setattr("pipeline.config.folders.can_be_written", lambda folder: False)  # root can write all folders
    assert folders(environment).engines == tmp_path / "e", "a folder that cannot be created is reported as such"
    (tmp_path / "e").mkdir()
    found = folders(environment)
    assert found.shared_engines == tmp_path / "e"
    assert found.engines.is_relative_to(tmp_path / "c")
    assert folders(environment | {"LOOKAHEAD_ENGINES": str(tmp_path / "c")}).engines == tmp_path / "c"


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ConfigError, match="The working folder was removed"):
        folders({})


def test_configs_of_the_working_folder_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "configs" / "models"
    own.mkdir(parents=True)
    text = (SHIPPED / "configs/models/llama2-7b.yaml").read_text(encoding="utf-8")
    (own / "llama2-7b.yaml").write_text(text.replace("Llama 2 7B Chat\n", "Our Llama\n"), encoding="utf-8")
    (own / "own-llama.yaml").write_text(text, encoding="utf-8")
    (own / ".#own-llama.yaml").symlink_to("user@machine.1")  # as an editor marks an open file
    (own / "gone.yaml").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    where = folders({})
    assert find_model("llama2-7b", where) == own / "llama2-7b.yaml"
    assert load_model_config("llama2-7b", where).description == "Our Llama"
    # Its base lies with the shipped configs.
    assert load_model_config("own-llama", where).architecture == "LlamaForCausalLM"
    assert find_model("smollm2-135m", where) == SHIPPED / "configs/models/smollm2-135m.yaml"
    assert set(names_in(where.models)) == {*names_in([SHIPPED / "configs/models"]), "own-llama"}

"""Running the stages of a plan with a stand-in for TensorRT-LLM that writes what the real one would."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.backends.tensorrt_llm import build as trt_build
from pipeline.backends.tensorrt_llm import release_data, stages
from pipeline.backends.tensorrt_llm.build import execute
from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.stages import run_process, write_source
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.checkpoint.fetch import fetch
from pipeline.config.schema import ModelConfig
from pipeline.engine.build import build_engine
from pipeline.errors import BuildError, CheckpointError
from tests.servers import wait_for
from tests.trt_configs import trt_config
from tests.unit.backends.tensorrt_llm.stand_in import StandIn, build, silent


def test_a_build_reports_each_stage_and_its_log(where, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(where.engines))
    monkeypatch.setattr(trt_build, "require_ready", lambda *arguments: None)
    monkeypatch.setattr(trt_build, "execute", lambda plan, *rest: execute(plan, *rest, StandIn(plan)))
    notes: list[str] = []
    for profile in ("latency", "balanced"):
        build_engine(trt_config("tiny-random-llama", profile), where, note=notes.append)
    plan = plan_for(trt_config("tiny-random-llama"), where)
    assert f"conversion: from_hugging_face ({plan.conversion.folder}/log.txt)" in notes
    assert f"engine 'lookahead': trtllm-build ({plan.engines[0].folder}/log.txt)" in notes
    assert f"converted checkpoint: reused ({plan.conversion.output})" in notes


def test_stages_run_once_and_are_found_again(where):
    run, folder = build(where, StandIn)
    assert run.calls == ["convert", "build lookahead"]
    assert (folder / "engine" / "rank0.engine").is_file()
    assert (folder / "tokenizer" / "tokenizer_config.json").is_file()

    again, _ = build(where, StandIn, target="again")
    assert again.calls == []
    smaller, _ = build(where, StandIn, "engine.max_batch_size=2", target="smaller")
    assert smaller.calls == ["build lookahead"]
    other, _ = build(where, StandIn, "model.gpu_dtype=float16", target="other")
    assert other.calls == ["convert", "build lookahead"]


@pytest.mark.parametrize(
    ("killed_in", "left_to_do"),
    [
        ("checkpoint", ["convert", "build trie", "build lookahead"]),
        ("trie", ["build trie", "build lookahead"]),
        ("lookahead", ["build lookahead"]),
    ],
)
def test_a_killed_build_goes_on_with_the_stage_that_it_was_in(where, killed_in, left_to_do):
    class Killed(StandIn):
        """Dies with the config.json of a stage on disk, which looks as if it were finished."""

        def write(self, folder: Path, config: dict, suffix: str, name: str) -> None:
            super().write(folder, config, suffix, name)
            if killed_in in (name, self.calls[-1].removeprefix("build ")):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(where, Killed, ".speculation=both", target="killed")
    again, _ = build(where, StandIn, ".speculation=both")
    assert again.calls == left_to_do


def test_the_container_of_an_interrupted_stage_is_removed(where, monkeypatch):
    removed: list[str] = []
    monkeypatch.setattr(stages, "run_clean_up", lambda command: removed.append(command[-1]))

    def interrupted(argv, environment, folder, log):
        raise KeyboardInterrupt

    for place, expected in (("docker", 2), ("here", 0)):  # before the start, and after the interruption
        removed.clear()
        with pytest.raises(KeyboardInterrupt):
            build(where, lambda plan, place=place: interrupted, place=place)
        assert len(removed) == expected
    argv = plan_for(trt_config("tiny-random-llama"), where).conversion.docker_argv
    with pytest.raises(KeyboardInterrupt):
        build(where, lambda plan: interrupted, place="docker")
    assert set(removed) == {argv[argv.index("--name") + 1]}


def test_a_damaged_engine_is_built_again_and_force_repeats_all_stages(where, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(where.engines))
    monkeypatch.setattr(trt_build, "require_ready", lambda *arguments: None)
    calls: list[str] = []

    def run(plan, *rest):
        stand_in = StandIn(plan)
        execute(replace(plan, where="here"), *rest, stand_in)
        calls.extend(stand_in.calls)

    monkeypatch.setattr(trt_build, "execute", run)
    resolved = trt_config("tiny-random-llama")
    artifact = build_engine(resolved, where).artifact
    assert calls == ["convert", "build lookahead"]
    engine = artifact.engine_dir / "rank0.engine"
    whole = engine.read_bytes()
    engine.write_bytes(b"")
    calls.clear()
    assert build_engine(resolved, where).outcome == "built"
    assert (calls, engine.read_bytes()) == (["build lookahead"], whole)
    calls.clear()
    build_engine(resolved, where, force=True)
    assert calls == ["convert", "build lookahead"]


def test_two_engines_lie_side_by_side(where):
    run, folder = build(where, StandIn, ".speculation=both")
    assert run.calls == ["convert", "build trie", "build lookahead"]
    for model in ("tensorrt_llm_engine", "tensorrt_llm_lookahead"):
        assert (folder / "engine" / model / "config.json").is_file()


def test_the_checkpoint_itself_is_not_changed_and_its_copy_is_normalized(where):
    resolved = trt_config("tiny-random-llama")
    checkpoint = fetch(resolved.model, where.cache)
    before = (checkpoint.folder / "config.json").read_bytes()
    assert "rope_parameters" in json.loads(before)
    build(where, StandIn)
    assert (checkpoint.folder / "config.json").read_bytes() == before
    source = plan_for(resolved, where, checkpoint.content_hash).conversion.source
    assert json.loads((source / "config.json").read_text())["rope_theta"] == 10000.0


def test_code_of_a_checkpoint_reaches_the_converters_only_if_it_is_trusted(where, tmp_path):
    model = trt_config("tiny-random-llama").model
    folder = Path(shutil.copytree(fetch(model, where.cache).folder, tmp_path / "checkpoint"))
    auto_map = {"AutoConfig": "configuration_own.OwnConfig"}
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {"auto_map": auto_map}))
    (folder / "configuration_own.py").write_text("raise SystemExit('code of the checkpoint was run')")

    def source_of(trusted: bool) -> dict[str, object]:
        local = {"checkpoint": {"source": "local", "path": str(folder)}, "trust_remote_code": trusted}
        checkpoint = fetch(ModelConfig.model_validate(model.model_dump() | local), where.cache)
        source = tmp_path / f"source-{trusted}"
        assert write_source(checkpoint, "float16", source).get("auto_map") == (auto_map if trusted else None)
        write_tokenizer(checkpoint, tmp_path / f"tokenizer-{trusted}")  # by transformers' own class
        maps = {
            name: json.loads((source / name).read_text()).get("auto_map")
            for name in ("config.json", "tokenizer_config.json")
        }
        return {**maps, "code": [path.name for path in source.glob("*.py")]}

    assert source_of(False) == {"config.json": None, "tokenizer_config.json": None, "code": []}
    assert source_of(True) == {
        "config.json": auto_map,
        "tokenizer_config.json": auto_map,
        "code": ["configuration_own.py"],
    }
    assert json.loads((folder / "tokenizer_config.json").read_text())["auto_map"] == auto_map


def test_an_unreadable_tokenizer_is_reported_before_the_stages(where):
    resolved = trt_config("tiny-random-llama")
    folder = where.engines / "checkpoint"
    checkpoint = fetch(resolved.model, where.cache)
    shutil.copytree(checkpoint.folder, folder)
    (folder / "tokenizer.json").write_text("{")
    plan = plan_for(resolved, where, checkpoint.content_hash)
    run = StandIn(plan)
    with pytest.raises(CheckpointError, match="tokenizer"):
        execute(plan, resolved, replace(checkpoint, folder=folder), silent, where.engines / "artifact", run)
    assert run.calls == []


def test_a_failing_call_shows_the_end_of_its_log(where):
    with pytest.raises(BuildError, match=r"(?s)conversion failed with code 3.*last line"):
        build(where, lambda plan: StandIn(plan, code=3))


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BuildError, match="no-such-program cannot be started"):
        run_process(["no-such-program"], {}, tmp_path, tmp_path / "log")


def test_a_call_inherits_all_but_the_loader_switch(tmp_path, monkeypatch):
    monkeypatch.setenv(release_data.LOADER_SWITCH, "1")
    log = tmp_path / "log"
    command = f'echo "${release_data.LOADER_SWITCH}.$EXTRA"; exit 4'
    assert run_process(["sh", "-c", command], {"EXTRA": "extra"}, tmp_path, log) == 4
    assert log.read_text() == ".extra\n"


def test_an_interrupted_call_ends_with_its_children(tmp_path, monkeypatch):
    """A builder of several ranks has a process per rank, which would write its engine later."""

    def children() -> list[psutil.Process]:
        everything = psutil.process_iter(["cmdline"])
        return [process for process in everything if str(tmp_path / "log") in (process.info["cmdline"] or ())]

    def interrupted(process: subprocess.Popen[bytes]) -> None:
        monkeypatch.undo()
        wait_for(children)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_process(["sh", "-c", f"tail -f {tmp_path / 'log'} & wait"], {}, tmp_path, tmp_path / "log")
    wait_for(lambda: not children())

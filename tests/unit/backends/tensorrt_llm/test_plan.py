"""Plans of all shipped configs, parsed as TensorRT-LLM's own tools would parse them."""

from __future__ import annotations

import json

import pytest

from pipeline.backends.tensorrt_llm.build import full_text
from pipeline.backends.tensorrt_llm.build_context import build_context_of
from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.rules import faults_of
from pipeline.config.folders import folders
from pipeline.config.loading import names_in
from pipeline.engine.backend import backend_of
from pipeline.engine.plan import write_plan
from pipeline.errors import ConfigError
from tests.trt_configs import RELEASE_FACTS, SPECULATIONS, trt_config, trt_context
from tests.unit.backends.tensorrt_llm.builder import build_parser

SIZES = ("max_batch_size", "max_seq_len", "max_num_tokens", "max_input_len", "max_beam_width", "opt_num_tokens")


def plan(*overrides: str, model: str = "llama2-13b", profile: str = "latency"):
    return plan_for(trt_config(model, profile, *overrides))


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("profile", names_in(folders().profiles))
@pytest.mark.parametrize("model", names_in(folders().models))
def test_every_shipped_plan_is_complete_and_keeps_the_rules(model, profile, speculation):
    resolved = trt_config(model, profile, f".speculation={speculation}")
    assert faults_of(build_context_of(resolved)) == []
    found = plan_for(resolved)
    sizes, lookahead = resolved.profile.engine, resolved.lookahead
    w, n, g = lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size
    drafts_of = {
        "lookahead": (n - 2) + (w - 1 + g) * (n - 1),
        "trie": resolved.profile.tensorrt_llm.max_external_draft_len,
        "none": 0,
    }
    modes = ["trie", "lookahead"] if speculation == "both" else [speculation]

    assert [stage.instance.mode for stage in found.engines] == modes
    for stage in found.engines:
        drafts = drafts_of[stage.instance.mode]
        program, *words = stage.argv
        options = build_parser().parse_args(words)
        assert program == "trtllm-build"
        assert all(f"--{name}" in words for name in SIZES)
        assert options.max_draft_len == drafts
        assert options.speculative_decoding_mode == {
            "lookahead": "lookahead_decoding", "trie": "draft_tokens_external", "none": None,
        }[stage.instance.mode]  # fmt: skip
        # The builder adds the drafts to max_seq_len, and must find no reason to change max_num_tokens.
        assert options.max_seq_len + drafts == sizes.max_seq_len == stage.expected["build_config"]["max_seq_len"]
        assert (
            sizes.max_batch_size * (drafts + 1) <= options.max_num_tokens <= options.max_seq_len * sizes.max_batch_size
        )
        assert options.max_num_tokens == stage.expected["build_config"]["max_num_tokens"] == sizes.max_num_tokens
        assert options.max_input_len < options.max_seq_len
        assert options.opt_num_tokens <= options.max_num_tokens
        assert (options.max_beam_width, options.kv_cache_type) == (1, "paged")
        assert (options.use_paged_context_fmha, options.remove_input_padding) == ("enable", "enable")
        assert options.gpt_attention_plugin == resolved.dtype
        assert options.checkpoint_dir == str(found.conversion.output)
        assert stage.docker_argv[-len(stage.argv) :] == stage.argv
        if stage.instance.mode == "trie":
            assert stage.instance.kv_cache_reuse
            covers = resolved.profile.tensorrt_llm.enable_chunked_context
            assert covers or options.max_num_tokens >= sizes.max_seq_len
        assert stage.instance.lookahead == (lookahead if stage.instance.mode == "lookahead" else None)
    assert found.estimate.disk_bytes > found.estimate.gpu.weight_bytes > 0
    assert found.conversion.docker_argv[:3] == ("docker", "run", "--name")
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_the_engines_config_is_expected_to_say_what_the_command_line_asks(speculation):
    for stage in plan(f".speculation={speculation}", ".build_flags.gather_generation_logits=true").engines:
        config, flags = stage.expected["build_config"], stage.flags
        assert set(config) - {"plugin_config"} <= set(RELEASE_FACTS["build_config_fields"])
        assert set(config["plugin_config"]) <= set(RELEASE_FACTS["plugin_config_fields"])
        assert config["max_seq_len"] == flags["max_seq_len"] + stage.instance.limits.max_draft_len
        assert config["speculative_decoding_mode"] == {"lookahead": 8, "trie": 2, "none": 1}[stage.instance.mode]
        assert config["plugin_config"]["use_paged_context_fmha"] is True
        assert config["plugin_config"]["tokens_per_block"] == 32
        assert config["gather_generation_logits"] is True


def test_a_step_of_drafts_may_be_longer_than_all_sequences():
    sizes = [f"model.lookahead.latency.max_{name}=7" for name in ("window_size", "ngram_size", "verification_set_size")]
    (stage,) = plan(*sizes, "engine.max_seq_len=128", "engine.max_batch_size=4").engines
    assert (stage.flags["max_seq_len"], stage.flags["max_num_tokens"], stage.flags["opt_num_tokens"]) == (45, 336, 180)
    assert stage.expected["build_config"]["max_num_tokens"] == stage.instance.limits.max_num_tokens == 336


def test_user_flags_are_asked_for_and_expected():
    flags = (
        ".build_flags.multiple_profiles=enable",
        ".build_flags.fast_build=true",
        ".build_flags.gemm_plugin=disable",
    )
    (stage,) = plan(*flags).engines
    assert "--fast_build" in stage.argv
    assert "--opt_num_tokens" not in stage.argv
    plugins = stage.expected["build_config"]["plugin_config"]
    assert (plugins["multiple_profiles"], plugins["manage_weights"], plugins["gemm_plugin"]) == (True, True, None)


@pytest.mark.parametrize(
    ("quantization", "cache", "gemm", "fp8_context"),
    [
        ("none", "auto", "float16", "disable"),
        ("fp8", "auto", "disable", "disable"),  # the builder wants an FP8 cache with it
        ("fp8", "fp8", "disable", "enable"),
        ("int4_awq", "auto", "float16", "disable"),
    ],
)
def test_plugins_follow_the_weights(quantization, cache, gemm, fp8_context):
    (stage,) = plan(f".quantization={quantization}", f".kv_cache_dtype={cache}", ".speculation=trie").engines
    assert stage.flags["gemm_plugin"] == gemm
    assert stage.flags["use_fp8_context_fmha"] == fp8_context


def test_weights_are_streamed_without_the_plugin_that_keeps_them():
    (stage,) = plan(".build_flags.weight_streaming=true", ".parameters.gpu_weights_percent=0.5").engines
    assert stage.flags["gemm_plugin"] == "disable"


@pytest.mark.parametrize(("asked", "built"), [("enable", True), ("disable", False)])
def test_without_paged_context_the_builder_leaves_fp8_context_as_asked(asked, built):
    flags = (".build_flags.use_paged_context_fmha=disable", f".build_flags.use_fp8_context_fmha={asked}")
    (stage,) = plan(".quantization=fp8", ".speculation=none", *flags).engines
    assert stage.flags["use_fp8_context_fmha"] == asked
    assert stage.expected["build_config"]["plugin_config"]["use_fp8_context_fmha"] is built


@pytest.mark.parametrize("asked", [[".kv_cache_dtype=int8"], ["model.gpu_dtype=float32", ".speculation=none"]])
def test_where_it_cannot_be_paged_context_is_left_out(asked):
    (stage,) = plan(*asked).engines
    assert stage.flags["use_paged_context_fmha"] == "disable"
    assert stage.expected["build_config"]["plugin_config"]["use_paged_context_fmha"] is False
    assert stage.instance.kv_cache_reuse is False


def test_stages_have_fingerprints_of_exactly_their_inputs():
    base = plan()
    batch = plan("engine.max_batch_size=2")
    assert batch.conversion.digest == base.conversion.digest
    assert batch.engines[0].digest != base.engines[0].digest
    server = plan("server.http_port=9000", "scheduling.max_queue_size=3")
    assert [server.conversion.digest, server.engines[0].digest] == [base.conversion.digest, base.engines[0].digest]
    for other in ("model.gpu_dtype=bfloat16", ".quantization=fp8", "model.parallelism.tensor=2"):
        changed = plan(other)
        assert changed.conversion.digest != base.conversion.digest
        assert changed.engines[0].digest != base.engines[0].digest
        assert changed.conversion.folder != base.conversion.folder
    assert plan_for(trt_config(), checkpoint_hash="abc").conversion.digest != base.conversion.digest
    assert plan(profile="throughput").conversion.digest == base.conversion.digest


@pytest.mark.parametrize(
    "asked",
    [
        [".kv_cache_dtype=int8"],  # convert_checkpoint.py
        [".quantization=fp8"],  # quantize
        [".quantization=fp8", ".kv_cache_dtype=int8"],  # quantize.py
    ],
)
def test_calibration_texts_count_and_are_seen_in_the_container(asked):
    def conversion(*texts: str):
        return plan(".speculation=none", *asked, *texts).conversion

    base, own = conversion(), conversion(".calib_dataset=/my/data")
    assert base.fingerprint["calibration"] == ["cnn_dailymail", 512]
    assert own.fingerprint["calibration"] == ["/my/data", 512]
    assert len({base.digest, own.digest, conversion(".calib_size=64").digest}) == 3
    words = own.docker_argv
    assert words[words.index("/my/data:/my/data:ro") - 1] == "--volume"
    assert "/my/data" not in " ".join(base.docker_argv)
    assert "/my/data" not in " ".join(
        plan(".speculation=none", *asked, ".calib_dataset=/my/data").engines[0].docker_argv
    )


def test_texts_that_nothing_is_calibrated_with_change_nothing():
    assert plan(".calib_dataset=/my/data", ".calib_size=64").conversion.digest == plan().conversion.digest


def test_two_engines_share_memory_and_names():
    first, second = plan(".speculation=both", ".lookahead_kv_share=0.25").engines
    assert (first.instance.triton_model, second.instance.triton_model) == (
        "tensorrt_llm_engine",
        "tensorrt_llm_lookahead",
    )
    assert first.instance.kv_fraction + second.instance.kv_fraction == pytest.approx(0.9)
    assert first.instance.kv_tokens == pytest.approx(3 * second.instance.kv_tokens, rel=0.01)
    assert first.instance.kv_tokens % 32 == second.instance.kv_tokens % 32 == 0


def test_ranks_reach_workers_and_mapping():
    found = plan("model.parallelism.tensor=2", ".speculation=both")
    assert found.world_size == 2
    assert found.engines[0].flags["workers"] == 2
    assert found.conversion.call["mapping"]["tp_size"] == 2


@pytest.mark.parametrize(
    ("overrides", "processes", "ranks"),
    [
        ((), 2, [None]),
        ((".speculation=both",), 2, [None, None]),
        ((".orchestrator=true",), 1, [None]),
        ((".orchestrator=true", ".speculation=both"), 1, [None, None]),
        ((".orchestrator=true", ".spawn_processes=false"), 3, ["1,2"]),
        ((".orchestrator=true", ".spawn_processes=false", ".speculation=both"), 5, ["1,2", "3,4"]),
    ],
)
def test_an_orchestrator_is_one_process_or_one_more_than_all_ranks(overrides, processes, ranks):
    found = plan("model.parallelism.tensor=2", *overrides)
    assert found.world_size == found.engines[0].flags["workers"] == 2
    assert [stage.instance.participant_ids for stage in found.engines] == ranks
    assert trt_context("model.parallelism.tensor=2", *overrides).num_processes == processes


def test_engines_under_a_folder_with_a_telling_name_are_refused(tmp_path):
    where = folders({"LOOKAHEAD_ENGINES": str(tmp_path / "vila-engines"), "LOOKAHEAD_HOME": str(folders().home)})
    with pytest.raises(ConfigError, match=r"LOOKAHEAD_ENGINES.*'vila'"):
        plan_for(trt_config(), where)


def test_the_text_holds_every_call_and_the_file_the_plan(tmp_path):
    where = folders({"LOOKAHEAD_ENGINES": str(tmp_path), "LOOKAHEAD_HOME": str(folders().home)})
    resolved = trt_config("llama2-13b", "latency", ".speculation=both")
    found = plan_for(resolved, where)
    text = full_text(found, ["docker build image", "docker run server"])
    assert text.count("trtllm-build ") == 2
    assert "No part of this plan has been run" in text
    assert "serving\n  docker build image\n  docker run server\n" in text
    shown, calls = backend_of("tensorrt_llm").full_plan(resolved, where)
    assert shown.startswith(text[: text.index("\nserving\n")])
    launch = calls.pop("launch")
    assert calls == found.to_json()
    assert launch["argv"]
    assert json.loads(write_plan(calls, resolved, where).read_text()) == calls


def test_the_backend_offers_the_plan_to_the_command_line():
    shown = backend_of("tensorrt_llm").plan(trt_config())
    assert "79 from W, N, G = 10, 5, 10" in shown["engine tensorrt_llm_engine"]
    json.dumps(shown)


def test_what_is_unusual_is_noted():
    def notes(*overrides: str, **where: str) -> str:
        return " ".join(plan(*overrides, **where).notes)

    assert "chains are cut" in notes(".speculation=trie")
    assert "not tested by NVIDIA" in notes(".enable_kv_cache_reuse=true")
    assert "G = 12 is more than W = 10" in notes("model.lookahead.latency.max_verification_set_size=12")
    assert "belongs to the torch engine" in notes(profile="throughput")
    assert "do not name compute capability" not in notes()
    assert "do not name compute capability 89" in notes(".compute_capability=89")
    assert "finds no texts in /my/data" in notes(".kv_cache_dtype=int8", ".calib_dataset=/my/data")
    assert "finds no texts" not in notes(".kv_cache_dtype=int8", ".calib_dataset=/my/lambada")
    assert "column 'text' of split 'train' in /my/data" in notes(".quantization=fp8", ".calib_dataset=/my/data")
    assert "column 'article'" in notes(".quantization=fp8", ".calib_dataset=/my/cnn_dailymail")


def test_fingerprints_of_artifacts_never_share_engines_of_other_sizes():
    backend = backend_of("tensorrt_llm")
    one = backend.fingerprint(trt_config(), "abc")
    other = backend.fingerprint(trt_config("llama2-13b", "latency", "engine.max_batch_size=2"), "abc")
    assert one != other
    assert backend.files_digest(one) != backend.files_digest(other)
    assert one == backend.fingerprint(trt_config("llama2-13b", "latency", "server.http_port=1"), "abc")

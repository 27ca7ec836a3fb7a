"""All rules together: all faults are reported, each once; tests of plans check shipped configs."""

from __future__ import annotations

import json

import pytest

from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.rules import check, faults_of
from pipeline.config.folders import SHIPPED
from pipeline.config.resolution import resolve_config
from pipeline.errors import ConfigError
from tests.trt_configs import trt_config, trt_context

NOT_PAGED = ".build_flags.use_paged_context_fmha=disable"


def test_all_faults_come_at_once_and_each_once():
    with pytest.raises(ConfigError) as error:
        check(
            trt_config(
                "llama2-13b",
                "latency",
                ".speculation=both",
                ".kv_cache_dtype=int8",
                ".build_flags.kv_cache_type=disabled",
                ".container_tag='25.01'",
                "model.parallelism.tensor=3",
            )
        )
    text = str(error.value)
    assert text.startswith("4 faults in the configuration:")
    for key in ("speculation", "kv_cache_type", "container_tag", "model.parallelism.tensor"):
        assert text.count(f"{key}: found") == 1


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (".build_flags.gemm_plugin=int7", "should be 'auto', 'float16',"),
        (".build_flags.kv_cache_type=PAGGED", "found 'PAGGED'; should be 'paged'."),
        (".build_flags.remove_input_padding=no", "should be 'enable' or 'disable' in quotes."),
        (".parameters.guided_decoding_backend=foo", "should be 'xgrammar'."),
        (
            ".build_flags.user_buffer=enable",
            "found 'enable'; it is made for LlamaForCausalLM with tensorrt_llm.quantization = 'fp8' and "
            "tensorrt_llm.build_flags.reduce_fusion = 'enable'.",
        ),
    ],
)
def test_one_fault_is_reported_in_one_sentence(override, text):
    (problem,) = faults_of(trt_context(override))
    assert problem.key == f"tensorrt_llm{override.partition('=')[0]}"
    assert text in problem.text


@pytest.mark.parametrize(
    "overrides",
    [
        [".quantization=fp8", ".kv_cache_dtype=fp8"],
        [".speculation=trie", ".quantization=fp8", ".kv_cache_dtype=fp8"],
        *(
            [".quantization=fp8", f".kv_cache_dtype={cache}", f".build_flags.use_fp8_context_fmha={asked}", NOT_PAGED]
            for cache in ("auto", "fp8")
            for asked in ("enable", "disable")
        ),
        [".speculation=trie", ".quantization=int4_awq", ".compute_capability=80"],
        [".speculation=none", ".quantization=nvfp4", ".compute_capability=100"],
        [".kv_cache_dtype=int8"],
        ["model.gpu_dtype=float32", ".speculation=none"],
        [".compute_capability=120", ".allow_unvalidated=true"],
        [".quantization=int8_wo", ".allow_unvalidated=true"],
        ["model.parallelism.tensor=2", ".build_flags.reduce_fusion=enable"],
        [
            "model.parallelism.tensor=2",
            ".build_flags.reduce_fusion=enable",
            ".build_flags.user_buffer=enable",
            ".quantization=fp8",
        ],
        [".parameters.gpu_device_ids='0,1;2,3'", "model.parallelism.tensor=2"],
        [".build_flags.multiple_profiles=enable"],
        ["model.shape.sliding_window=4096"],
        ["model.architecture=FalconForCausalLM", "model.shape.position_embedding=rope"],
        ["model.architecture=FalconForCausalLM", ".speculation=trie"],
        [
            "model.architecture=BaichuanForCausalLM",
            "model.trust_remote_code=true",
            "model.shape.num_attention_heads=32",
            "model.shape.num_key_value_heads=32",
        ],
        ["model.architecture=MixtralForCausalLM", "model.parallelism.tensor=4", ".moe_expert_parallel=2"],
        [".orchestrator=true", "model.parallelism.tensor=2"],
        [".orchestrator=true", ".speculation=both", "model.parallelism.tensor=2"],
        [".orchestrator=true", ".spawn_processes=false", "model.parallelism.tensor=2"],
        [".orchestrator=true", ".spawn_processes=false", ".speculation=both"],
        ["model.architecture=InternLM2ForCausalLM", "model.trust_remote_code=true"],
        [".parameters.cuda_graph_mode=true", ".parameters.max_tokens_in_paged_kv_cache=100000"],
    ],
)
def test_what_is_possible_is_not_refused(overrides):
    assert faults_of(trt_context(*overrides)) == []


def test_a_recurrent_model_is_planned_without_reuse():
    context = trt_context("model.architecture=RecurrentGemmaForCausalLM", ".speculation=none")
    assert faults_of(context) == []
    assert context.kv_cache_reuse("none") is False
    assert trt_context(".speculation=none").kv_cache_reuse("none") is True


@pytest.mark.parametrize(("stated", "refused"), [({"alibi": False}, False), ({"alibi": True}, True), ({}, True)])
def test_a_local_falcon_says_its_positions_in_config_json(stated, refused, tmp_path):
    sizes = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 65024}
    config = {**sizes, "architectures": ["FalconForCausalLM"], "max_position_embeddings": 4096, **stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = (
        "model.lookahead={default: {max_window_size: 4, max_ngram_size: 3, max_verification_set_size: 4}}",
        "model.gpu_dtype=float16",
    )
    problems = faults_of(trt_context(*overrides, model=str(tmp_path)))
    assert bool(problems) == refused
    assert all("ALiBi" in problem.text for problem in problems)


def test_lora_with_target_modules_is_taken():
    modules = (".build_flags.lora_plugin=auto", ".build_flags.lora_target_modules=attn_q attn_v")
    words = plan_for(trt_config("llama2-13b", "latency", *modules)).engines[0].argv
    place = words.index("--lora_target_modules")
    assert words[place + 1 : place + 3] == ("attn_q", "attn_v")


def test_a_name_by_which_the_loader_knows_the_model_is_not_refused(tmp_path):
    own = tmp_path / "exaone-8b.yaml"
    own.write_text((SHIPPED / "configs/models/llama2-13b.yaml").read_text(encoding="utf-8"))
    overrides = ("model.architecture=ExaoneForCausalLM", "model.trust_remote_code=true")
    assert faults_of(trt_context(*overrides, model=str(own))) == []


def test_one_sequence_at_a_time_gets_the_tokens_that_it_holds():
    """The setting of the lookahead paper; trtllm-build would cap the number itself and warn."""
    resolved = resolve_config("llama2-13b", "latency", ("backend=tensorrt_llm", "engine.max_batch_size=1"))
    plan = plan_for(resolved)
    flags = plan.engines[0].flags
    assert flags["max_seq_len"] == flags["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].expected["build_config"]["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].instance.limits.longest_prompt == 4096 - 79
    assert any("engine gets 4017" in note for note in plan.notes)

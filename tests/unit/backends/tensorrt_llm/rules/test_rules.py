"""All rules together: shipped configs pass, and all faults are reported, each once."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.release_data import release
from pipeline.backends.tensorrt_llm.rules import check, faults_of
from pipeline.checkpoint.architectures import SUPPORTED_ARCHITECTURES
from pipeline.config.loading import names_in
from pipeline.config.places import places
from pipeline.config.resolution import resolve_config
from pipeline.errors import ConfigError
from tests.trt_configs import SPECULATIONS, trt_config, trt_context

# Architectures of the torch engine that TensorRT-LLM has no class or no converter for, except by a script.
TORCH_ONLY = {
    *("GPTNeoXForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM"),
    *("Olmo3ForCausalLM", "StableLmForCausalLM", "Cohere2ForCausalLM", "SmolLM3ForCausalLM", "ArceeForCausalLM"),
    *("SeedOssForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM"),
}


def test_an_engine_is_built_of_what_the_torch_engine_can_judge():
    assert set(release().model_map) == set(SUPPORTED_ARCHITECTURES) - TORCH_ONLY


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("profile", names_in(places().profiles))
@pytest.mark.parametrize("model", names_in(places().models))
def test_what_we_ship_is_right_in_every_mode(model, profile, speculation):
    assert faults_of(trt_context(f".speculation={speculation}", model=model, profile=profile)) == []


def test_all_faults_come_at_once_and_each_once():
    with pytest.raises(ConfigError) as error:
        check(
            trt_config(
                "llama2-13b",
                "latency",
                ".speculation=both",
                ".kv_cache_dtype=fp8",
                ".build_flags.kv_cache_type=disabled",
                ".container_tag='25.01'",
                "model.parallelism.tensor=3",
            )
        )
    text = str(error.value)
    assert text.startswith("4 faults in the configuration:")
    for key in ("speculation", "container_tag", "model.parallelism.tensor"):
        assert text.count(f"{key}: found") == 1
    assert text.count("build_flags.kv_cache_type: cannot be set here") == 1


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (".build_flags.gemm_plugin=int7", "should be 'auto', 'float16',"),
        (".build_flags.reduce_fusion=no", "should be 'enable' or 'disable' in quotes."),
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
        [".speculation=trie", ".quantization=int4_awq", ".compute_capability=80"],
        [".speculation=none", ".quantization=nvfp4", ".compute_capability=100"],
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
        ["model.architecture=MixtralForCausalLM", "model.parallelism.tensor=4", ".moe_expert_parallel=2"],
        [".orchestrator=true", "model.parallelism.tensor=2"],
        [".orchestrator=true", ".speculation=both", "model.parallelism.tensor=2"],
        [".parameters.cuda_graph_mode=true", ".parameters.max_tokens_in_paged_kv_cache=100000"],
    ],
)
def test_what_is_possible_is_not_refused(overrides):
    assert faults_of(trt_context(*overrides)) == []


def test_one_sequence_at_a_time_gets_the_tokens_that_it_holds():
    """The setting of the lookahead paper; trtllm-build would cap the number itself and warn."""
    resolved = resolve_config("llama2-13b", "latency", ("backend=tensorrt_llm", "engine.max_batch_size=1"))
    plan = plan_for(resolved)
    flags = plan.engines[0].flags
    assert flags["max_seq_len"] == flags["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].expected["build_config"]["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].instance.limits.longest_prompt == 4096 - 79
    assert any("engine gets 4017" in note for note in plan.notes)

"""What the architecture, its conversion and its shape refuse."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.rules import faults_of
from pipeline.backends.tensorrt_llm.rules.model import RULES
from pipeline.config.places import SHIPPED
from tests.trt_configs import trt_context
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    ("model.architecture=FalconForCausalLM model.shape=null", "model.shape", "ALiBi"),
    ("model.architecture=GptOssForCausalLM", "model.architecture", "without engines"),
    ("model.architecture=LamaForCausalLM", "model.architecture", "Did you mean"),
    ("model.architecture=LlavaLlamaModel", "model.architecture", "images"),
    ("model.architecture=BertModel .speculation=none", "model.architecture", "does not generate"),
    ("model.shape=null", "model.shape", "config.json"),
    (
        "model.parallelism.tensor=3",
        "model.parallelism.tensor",
        "found 3; it does not divide the 40 attention heads of llama2-13b. Use 1, 2, 4, 5, 8, 10, 20 or 40.",
    ),
    (
        "model.parallelism.tensor=5 model.shape.num_key_value_heads=8",
        "model.parallelism.tensor",
        "the 40 attention heads and 8 key/value heads of llama2-13b. Use 1, 2, 4, 8 or 40.",
    ),
    (
        "model.parallelism.pipeline=48 .speculation=none",
        "model.parallelism.pipeline",
        "has only 40 layers. Use at most that many.",
    ),
    (".moe_expert_parallel=2", "tensorrt_llm.moe_expert_parallel", "no experts"),
    (
        "model.architecture=MixtralForCausalLM model.parallelism.tensor=4 .moe_expert_parallel=2 "
        ".moe_tensor_parallel=1",
        "tensorrt_llm.moe_expert_parallel",
        "tensor = 4",
    ),
    (
        "model.architecture=MixtralForCausalLM model.parallelism.tensor=2 .moe_expert_parallel=2 .quantization=fp8",
        "tensorrt_llm.moe_expert_parallel",
        "calibration",
    ),
    (
        "model.architecture=GPTNeoXForCausalLM .quantization=fp8",
        "tensorrt_llm.quantization",
        "found 'fp8'; GPTNeoXForCausalLM is converted by the script of 'gptneox', which cannot calibrate weights. "
        "Use 'none'.",
    ),
    (
        "model.architecture=Phi3ForCausalLM .kv_cache_dtype=int8",
        "tensorrt_llm.kv_cache_dtype",
        "the script of 'phi', which has no option --int8_kv_cache. Use 'auto'.",
    ),
    (
        "model.architecture=Qwen2ForCausalLM .kv_cache_dtype=int8 .calib_size=64",
        "tensorrt_llm.calib_size",
        "found 64; Qwen2ForCausalLM is converted by the script of 'qwen', which has no option --calib_size. Use 512.",
    ),
    (
        "model.architecture=GPTNeoXForCausalLM model.parallelism.pipeline=2 .speculation=none",
        "model.parallelism.pipeline",
        "has no option --pp_size. Use 1.",
    ),
    (
        "model.architecture=Grok1ModelForCausalLM .quantization=int8_wo .speculation=none",
        "tensorrt_llm.quantization",
        "no quantisation",
    ),
    (
        "model.architecture=InternLM2ForCausalLM .speculation=none",
        "model.trust_remote_code",
        "found false; checkpoints of InternLM2ForCausalLM bring Python code that the conversion has to run.",
    ),
    ("model.architecture=QWenLMHeadModel .speculation=none", "model.trust_remote_code", "set this to true"),
    ("model.architecture=ChatGLMModel .speculation=none", "model.trust_remote_code", "set this to true"),
    ("model.architecture=BaichuanForCausalLM .speculation=none", "model.trust_remote_code", "set this to true"),
    (
        "model.architecture=ExaoneForCausalLM model.trust_remote_code=true",
        "model.name",
        "found 'llama2-13b'; TensorRT-LLM converts ExaoneForCausalLM rightly only if the path of the checkpoint "
        "contains 'exaone'. Rename the model config, e.g. to 'exaone-llama2-13b'",
    ),
    ("model.architecture=ChatGLMModel model.trust_remote_code=true", "model.name", "contains 'glm'"),
    (
        'model.architecture=ExaoneForCausalLM model.checkpoint={"source":"local","path":"/models/llava-exaone"}',
        "model.checkpoint.path",
        "'llava'",
    ),
    ('model.checkpoint={"source":"local","path":"/models/llava-merged"}', "model.checkpoint.path", "'llava'"),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []


def test_a_name_by_which_the_loader_knows_the_model_is_not_refused(tmp_path):
    own = tmp_path / "exaone-8b.yaml"
    own.write_text((SHIPPED / "configs/models/llama2-13b.yaml").read_text(encoding="utf-8"))
    overrides = ("model.architecture=ExaoneForCausalLM", "model.trust_remote_code=true")
    assert faults_of(trt_context(*overrides, model=str(own))) == []

"""Wrong combinations are refused before anything is downloaded, each with its key, what was found and what to do."""

from __future__ import annotations

import json

import pytest

from pipeline.config.loading import names_in
from pipeline.config.places import places
from pipeline.engine.tensorrt_llm.rules import RULES, check, problems_of
from pipeline.errors import ConfigError
from tests.trt_configs import SPECULATIONS, trt_case, trt_config

NOT_PAGED = ".build_flags.use_paged_context_fmha=disable"
# Overrides, the key that is named, and a part of the sentence. They start from llama2-13b under latency (lookahead).
WRONG = [
    # sizes (contract 2.2, 2.5)
    (
        ".speculation=lookahead engine.max_seq_len=80 engine.max_num_tokens=200 engine.max_batch_size=2 "
        "engine.max_draft_tokens=64 engine.prefill_chunk=64",
        "engine.max_seq_len",
        "leaves 1 for prompt and output",
    ),
    ("engine.max_batch_size=64", "engine.max_num_tokens", "raise it unseen to 5120"),
    (
        "engine.max_batch_size=8 .speculation=trie .max_external_draft_len=256 engine.max_num_tokens=2048 "
        ".enable_chunked_context=true",
        "engine.max_num_tokens",
        "2056",
    ),
    ("engine.max_num_tokens=20000", "engine.max_num_tokens", "lower it unseen"),
    (".speculation=trie engine.max_num_tokens=2048", "engine.max_num_tokens", "enable_chunked_context to true"),
    (".speculation=both engine.max_num_tokens=4095", "engine.max_num_tokens", "sends prompt, output and drafts"),
    (".build_flags.max_input_len=1000", "tensorrt_llm.build_flags.max_input_len", "ignores it"),
    (
        ".build_flags.multiple_profiles=enable .build_flags.opt_num_tokens=64",
        "tensorrt_llm.build_flags.opt_num_tokens",
        "takes one of them",
    ),
    (".build_flags.opt_num_tokens=100000", "tensorrt_llm.build_flags.opt_num_tokens", "4096"),
    ("model.lookahead.latency.max_window_size=600 engine.max_num_tokens=9000", "model.lookahead", "2048"),
    # build options (2.2, 11)
    (".build_flags.gather_context_logits=true", "tensorrt_llm.build_flags.gather_context_logits", "cannot gather"),
    (
        ".build_flags.gather_all_token_logits=true .speculation=trie",
        "tensorrt_llm.build_flags.gather_all_token_logits",
        "'none'",
    ),
    (".build_flags.streamingllm=enable", "tensorrt_llm.build_flags.streamingllm", "refuses"),
    (".build_flags.reduce_fusion=enable", "tensorrt_llm.build_flags.reduce_fusion", "tensor = 1"),
    (
        ".build_flags.reduce_fusion=enable model.parallelism.tensor=2 model.architecture=MistralForCausalLM",
        "tensorrt_llm.build_flags.reduce_fusion",
        "only Llama",
    ),
    (".build_flags.user_buffer=enable", "tensorrt_llm.build_flags.user_buffer", "without reduce_fusion"),
    (
        ".build_flags.user_buffer=enable .build_flags.reduce_fusion=enable model.parallelism.tensor=2",
        "tensorrt_llm.build_flags.user_buffer",
        "'fp8'",
    ),
    (".build_flags.norm_quant_fusion=enable", "tensorrt_llm.build_flags.norm_quant_fusion", "nvfp4"),
    (".build_flags.pp_reduce_scatter=enable", "tensorrt_llm.build_flags.pp_reduce_scatter", "Mixtral"),
    (".build_flags.max_beam_width=4", "tensorrt_llm.build_flags.max_beam_width", "needs 1"),
    (".build_flags.max_beam_width=4 .speculation=none", "tensorrt_llm.build_flags.max_beam_width", "one beam"),
    (".build_flags.kv_cache_type=continuous", "tensorrt_llm.build_flags.kv_cache_type", "'paged'"),
    (".build_flags.kv_cache_type=disabled .speculation=none", "tensorrt_llm.build_flags.kv_cache_type", "'paged'"),
    (".build_flags.gpt_attention_plugin=disable", "tensorrt_llm.build_flags.gpt_attention_plugin", "'auto'"),
    (".build_flags.remove_input_padding=disable", "tensorrt_llm.build_flags.remove_input_padding", "'enable'"),
    # the backend's in-flight batching needs these whatever the speculation (supportsInflightBatching)
    (
        ".build_flags.gpt_attention_plugin=disable .speculation=none",
        "tensorrt_llm.build_flags.gpt_attention_plugin",
        "found 'disable'; engines are served with in-flight batching, which needs 'auto'. Remove it.",
    ),
    (
        ".build_flags.remove_input_padding=disable .speculation=none",
        "tensorrt_llm.build_flags.remove_input_padding",
        "found 'disable'; engines are served with in-flight batching, which needs 'enable'. Remove it.",
    ),
    (
        "model.architecture=MambaForCausalLM .build_flags.mamba_conv1d_plugin=disable .speculation=none",
        "tensorrt_llm.build_flags.mamba_conv1d_plugin",
        "in-flight batching",
    ),
    (
        "model.architecture=RecurrentGemmaForCausalLM .build_flags.paged_state=disable .speculation=none",
        "tensorrt_llm.build_flags.paged_state",
        "in-flight batching",
    ),
    (".build_flags.max_draft_len=83", "tensorrt_llm.build_flags.max_draft_len", "model.lookahead"),
    (
        ".build_flags.speculative_decoding_mode=medusa",
        "tensorrt_llm.build_flags.speculative_decoding_mode",
        "tensorrt_llm.speculation",
    ),
    (".build_flags.max_batch_size=2048", "tensorrt_llm.build_flags.max_batch_size", "engine.max_batch_size"),
    (".build_flags.build_config=file.json", "tensorrt_llm.build_flags.build_config", "discarded"),
    (".build_flags.paged_kv_cache=enable", "tensorrt_llm.build_flags.paged_kv_cache", "deprecated"),
    (".build_flags.strip_plan=true", "tensorrt_llm.build_flags.strip_plan", "no weights"),
    (".build_flags.gem_plugin=float16", "tensorrt_llm.build_flags.gem_plugin", "Did you mean 'gemm_plugin'"),
    (".build_flags.gemm_plugin=float8", "tensorrt_llm.build_flags.gemm_plugin", "'nvfp4'"),
    (".build_flags.max_lora_rank=many", "tensorrt_llm.build_flags.max_lora_rank", "whole number"),
    (".build_flags.fast_build=enable", "tensorrt_llm.build_flags.fast_build", "true or false"),
    (".build_flags.context_fmha=true", "tensorrt_llm.build_flags.context_fmha", "'enable' or 'disable'"),
    # lookahead (3, 11)
    (
        "model.lookahead.latency.max_window_size=1 model.lookahead.latency.max_ngram_size=1 "
        "model.lookahead.latency.max_verification_set_size=0",
        "model.lookahead.latency",
        "makes no drafts",
    ),
    (
        "model.lookahead.latency.max_window_size=1 model.lookahead.latency.max_ngram_size=2 "
        "model.lookahead.latency.max_verification_set_size=0",
        "model.lookahead.latency",
        "makes no drafts",
    ),
    ("model.architecture=BloomForCausalLM", "tensorrt_llm.speculation", "ALiBi"),
    ("model.shape.position_embedding=alibi", "tensorrt_llm.speculation", "ALiBi"),
    ("model.architecture=FalconForCausalLM model.shape=null", "model.shape", "ALiBi"),
    # 40 heads: the converter takes it for Baichuan-13B, whatever is stated
    ("model.architecture=BaichuanForCausalLM", "tensorrt_llm.speculation", "ALiBi"),
    (
        "model.architecture=BaichuanForCausalLM model.shape.position_embedding=rope",
        "tensorrt_llm.speculation",
        "ALiBi",
    ),
    (
        "model.architecture=FalconForCausalLM",
        "model.shape.position_embedding",
        "is missing; some models of FalconForCausalLM have ALiBi positions",
    ),
    (
        "model.architecture=FalconForCausalLM model.shape.position_embedding=alibi .speculation=both",
        "tensorrt_llm.speculation",
        "ALiBi",
    ),
    ("model.gpu_dtype=float32", "model.gpu_dtype", "float16 and bfloat16"),
    ("model.architecture=GPT2LMHeadModel", "tensorrt_llm.speculation", "lack of a kernel"),
    ("model.shape.head_size=100", "tensorrt_llm.speculation", "multiples of 16"),
    ("model.shape.head_size=288", "tensorrt_llm.speculation", "up to 256"),
    ("model.shape.num_key_value_heads=1", "tensorrt_llm.speculation", "40 query heads"),
    ("model.shape.sliding_window=2048", "tensorrt_llm.speculation", "sliding attention window of 2048"),
    ("model.architecture=Gemma2ForCausalLM", "tensorrt_llm.speculation", "sliding attention window"),
    ("model.architecture=MambaForCausalLM .speculation=trie", "tensorrt_llm.speculation", "recurrent"),
    (
        "model.architecture=RecurrentGemmaForCausalLM .speculation=none .enable_chunked_context=true",
        "tensorrt_llm.enable_chunked_context",
        "recurrent",
    ),
    (
        "model.architecture=RecurrentGemmaForCausalLM .speculation=none .enable_kv_cache_reuse=true",
        "tensorrt_llm.enable_kv_cache_reuse",
        "recurrent",
    ),
    ("model.architecture=MedusaForCausalLM", "model.architecture", "own speculative mode"),
    (".context_parallel=2", "tensorrt_llm.context_parallel", "context parallelism"),
    ("model.parallelism.pipeline=2", "model.parallelism.pipeline", "allow_unvalidated"),
    (".quantization=int4_awq", "tensorrt_llm.quantization", "16-bit and FP8"),
    (".compute_capability=100", "tensorrt_llm.compute_capability", "after Hopper"),
    (".parameters.sink_token_length=4", "tensorrt_llm.parameters.sink_token_length", "attends to all"),
    (".parameters.max_attention_window_size=2048", "tensorrt_llm.parameters.max_attention_window_size", "attends"),
    (
        ".parameters.guided_decoding_backend=xgrammar .parameters.xgrammar_tokenizer_info_path=x.json",
        "tensorrt_llm.parameters.guided_decoding_backend",
        "exclude",
    ),
    # external drafts (4)
    (".speculation=trie .kv_cache_dtype=int8", "tensorrt_llm.speculation", "kv_cache_dtype = 'int8'"),
    (".speculation=trie .kv_cache_dtype=fp8", "tensorrt_llm.speculation", "fp8, w4a8_awq or nvfp4"),
    (
        ".speculation=trie model.gpu_dtype=float32",
        "tensorrt_llm.speculation",
        "found 'trie', which needs paged context attention, but model.gpu_dtype = 'float32' leaves attention unfused; "
        "the fused kernels take float16 and bfloat16. Change that, or use 'none'.",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .enable_chunked_context=true",
        "tensorrt_llm.enable_chunked_context",
        "'float32'",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .enable_kv_cache_reuse=true",
        "tensorrt_llm.enable_kv_cache_reuse",
        "'float32'",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .build_flags.use_paged_context_fmha=enable",
        "tensorrt_llm.build_flags.use_paged_context_fmha",
        "'float32'",
    ),
    (".speculation=trie .build_flags.use_paged_context_fmha=disable", "tensorrt_llm.speculation", "'disable'"),
    (".speculation=trie .build_flags.context_fmha=disable", "tensorrt_llm.speculation", "context_fmha"),
    (".speculation=trie .enable_kv_cache_reuse=false", "tensorrt_llm.enable_kv_cache_reuse", "does not load"),
    (".kv_cache_dtype=int8 .enable_chunked_context=true", "tensorrt_llm.enable_chunked_context", "int8"),
    (".kv_cache_dtype=int8 .enable_kv_cache_reuse=true", "tensorrt_llm.enable_kv_cache_reuse", "int8"),
    (
        ".kv_cache_dtype=int8 .build_flags.use_paged_context_fmha=enable",
        "tensorrt_llm.build_flags.use_paged_context_fmha",
        "Change one",
    ),
    (".build_flags.gpt_attention_plugin=bfloat16", "tensorrt_llm.build_flags.gpt_attention_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=bfloat16", "tensorrt_llm.build_flags.gemm_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=fp8", "tensorrt_llm.build_flags.gemm_plugin", "FP8 weights"),
    (".build_flags.gemm_plugin=nvfp4 .quantization=fp8", "tensorrt_llm.build_flags.gemm_plugin", "NVFP4 weights"),
    (".build_flags.low_latency_gemm_plugin=fp8", "tensorrt_llm.build_flags.low_latency_gemm_plugin", "FP8 weights"),
    (
        ".build_flags.nccl_plugin=disable model.parallelism.tensor=2",
        "tensorrt_llm.build_flags.nccl_plugin",
        "2 rank(s)",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "kv_cache_dtype is 'auto'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .kv_cache_dtype=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "tensorrt_llm.quantization is 'none'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8 .build_flags.context_fmha=disable",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "context_fmha = 'disable'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8 model.gpu_dtype=float32 .speculation=none",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "'float32'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=disable .kv_cache_dtype=fp8 .quantization=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "switch on",
    ),
    (".speculation=none drafting.strategy=lookahead", "drafting.strategy", "builds no engine"),
    # GPU, container, memory (2.2, 3.4, 6)
    (".compute_capability=75 .speculation=none", "tensorrt_llm.compute_capability", "80, 86, 89"),
    (".compute_capability=80 .quantization=fp8", "tensorrt_llm.quantization", "89 or newer"),
    (".compute_capability=86 .quantization=w4a8_awq .speculation=none", "tensorrt_llm.quantization", "89"),
    (".quantization=nvfp4 .speculation=none", "tensorrt_llm.quantization", "100 or newer"),
    (".compute_capability=86 .kv_cache_dtype=fp8", "tensorrt_llm.kv_cache_dtype", "89 or newer"),
    (".compute_capability=100 .quantization=int8_wo .speculation=none", "tensorrt_llm.quantization", "nvfp4"),
    (".compute_capability=100 .quantization=int4_awq .speculation=trie", "tensorrt_llm.quantization", "nvfp4"),
    (".compute_capability=103 .quantization=w4a8_awq .speculation=none", "tensorrt_llm.quantization", "refuses it"),
    (".compute_capability=103 .kv_cache_dtype=int8 .speculation=none", "tensorrt_llm.kv_cache_dtype", "103"),
    (".container_tag='25.01'", "tensorrt_llm.container_tag", "no lookahead parameters"),
    (".container_tag='25.03'", "tensorrt_llm.container_tag", "not confirmed"),
    (".container_tag='25.12'", "tensorrt_llm.container_tag", "release line 1.2"),
    (".container_tag='27.01'", "tensorrt_llm.container_tag", "'26.07'"),
    (".gpu_memory_gib=24", "tensorrt_llm.gpu_memory_gib", "GiB per GPU"),
    # model and conversion (1, 8)
    ("model.architecture=GptOssForCausalLM", "model.architecture", "without engines"),
    ("model.architecture=LamaForCausalLM", "model.architecture", "Did you mean"),
    ("model.architecture=LlavaLlamaModel", "model.architecture", "images"),
    ("model.architecture=BertModel .speculation=none", "model.architecture", "does not generate"),
    ("model.shape=null", "model.shape", "config.json"),
    (
        "model.parallelism.tensor=3",
        "model.parallelism.tensor",
        "found 3, which does not divide the 40 attention heads of llama2-13b. Use 1, 2, 4, 5, 8, 10, 20 or 40.",
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
    # served model and launch (5)
    (".parameters.decoding_mode=top_k", "tensorrt_llm.parameters.decoding_mode", "tensorrt_llm.speculation"),
    (".parameters.lookahead_window_size=3", "tensorrt_llm.parameters.lookahead_window_size", "model.lookahead"),
    (".parameters.enable_trt_overlap=true", "tensorrt_llm.parameters.enable_trt_overlap", "no effect"),
    (".parameters.num_node=2", "tensorrt_llm.parameters.num_node", "Did you mean 'num_nodes'"),
    (".parameters.gpu_device_ids=first", "tensorrt_llm.parameters.gpu_device_ids", "commas"),
    (".parameters.gpu_device_ids='0,1'", "tensorrt_llm.parameters.gpu_device_ids", "1 rank(s)"),
    (
        ".parameters.gpu_device_ids='0,1;2' model.parallelism.tensor=2",
        "tensorrt_llm.parameters.gpu_device_ids",
        "2 rank(s)",
    ),
    ("engine.strict_tensorrt_llm=true", "engine.strict_tensorrt_llm", "torch engine"),
    (".parameters.cuda_graph_mode=maybe", "tensorrt_llm.parameters.cuda_graph_mode", "true or false"),
    (".parameters.num_nodes=-1", "tensorrt_llm.parameters.num_nodes", "at least 0"),
    (".parameters.gpu_weights_percent=1.5", "tensorrt_llm.parameters.gpu_weights_percent", "0 to 1"),
    (".parameters.gpu_weights_percent=0.5", "tensorrt_llm.parameters.gpu_weights_percent", "weight_streaming"),
    (".parameters.max_beam_width=2", "tensorrt_llm.parameters.max_beam_width", "one beam"),
    (
        ".parameters.speculative_decoding_fast_logits=true",
        "tensorrt_llm.parameters.speculative_decoding_fast_logits",
        "orchestrator",
    ),
    (
        ".parameters.guided_decoding_backend=xgrammar .speculation=none",
        "tensorrt_llm.parameters.guided_decoding_backend",
        "xgrammar_tokenizer_info_path",
    ),
    (".spawn_processes=false", "tensorrt_llm.spawn_processes", "orchestrator = true"),
    (".parameters.participant_ids='0'", "tensorrt_llm.parameters.participant_ids", "only an orchestrator"),
    (
        ".orchestrator=true .parameters.participant_ids='1'",
        "tensorrt_llm.parameters.participant_ids",
        "spawns no processes",
    ),
    (
        ".orchestrator=true .spawn_processes=false .parameters.participant_ids='0'",
        "tensorrt_llm.parameters.participant_ids",
        "rank 0 is the orchestrator's, and each engine has 1 of its own: '1'",
    ),
    (
        ".orchestrator=true .spawn_processes=false .parameters.participant_ids='1' model.parallelism.tensor=2",
        "tensorrt_llm.parameters.participant_ids",
        "each engine has 2 of its own: '1,2'",
    ),
    (
        ".orchestrator=true .spawn_processes=false .parameters.participant_ids='1' .speculation=both",
        "tensorrt_llm.parameters.participant_ids",
        "'1' and '2'",
    ),
    (
        ".orchestrator=true .spawn_processes=false .parameters.participant_ids=first",
        "tensorrt_llm.parameters.participant_ids",
        "commas",
    ),
    (
        ".speculation=both .parameters.max_tokens_in_paged_kv_cache=9999",
        "tensorrt_llm.parameters.max_tokens_in_paged_kv_cache",
        "lookahead_kv_share",
    ),
    (".kv_cache_free_gpu_mem_fraction=0.01", "tensorrt_llm.kv_cache_free_gpu_mem_fraction", "about 704 tokens"),
    (".speculation=both .lookahead_kv_share=0.05", "tensorrt_llm.lookahead_kv_share", "the 'lookahead' engine"),
    (
        ".parameters.max_tokens_in_paged_kv_cache=10",
        "tensorrt_llm.parameters.max_tokens_in_paged_kv_cache",
        "engine.max_seq_len = 4096",
    ),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[case[0][:60] for case in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    problems = problems_of(trt_case(*overrides.split()))

    found = [problem for problem in problems if problem.key == key and text in problem.text]
    assert found, problems
    with pytest.raises(ConfigError) as error:
        check(trt_config("llama2-13b", "latency", *overrides.split()))
    assert f"{key}: {found[0].text}" in str(error.value)


def test_there_are_many_of_them_and_every_rule_refuses_something():
    assert len(WRONG) >= 40
    cases = [trt_case(*overrides.split()) for overrides, _, _ in WRONG]
    idle = [rule.__name__ for rule in RULES if not any(list(rule(case)) for case in cases)]
    # Configs with this one are refused earlier, when the profile is resolved, unless the backend was chosen there.
    assert idle == []


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("profile", names_in(places().profiles))
@pytest.mark.parametrize("model", names_in(places().models))
def test_what_we_ship_is_right_in_every_mode(model, profile, speculation):
    assert problems_of(trt_case(f".speculation={speculation}", model=model, profile=profile)) == []


def test_all_faults_come_at_once_and_each_once():
    with pytest.raises(ConfigError) as error:
        check(
            trt_config(
                "llama2-13b",
                "latency",
                ".speculation=both",
                ".kv_cache_dtype=int8",
                ".build_flags.streamingllm=enable",
                ".container_tag='25.01'",
                "model.parallelism.tensor=3",
            )
        )
    text = str(error.value)
    assert text.startswith("4 faults in the configuration:")
    for key in ("speculation", "streamingllm", "container_tag", "model.parallelism.tensor"):
        assert text.count(f"{key}: found") == 1


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (".build_flags.gemm_plugin=int7", "should be 'auto', 'float16',"),
        (".build_flags.kv_cache_type=PAGGED", "in-flight batching and drafts need 'paged'. Remove it."),
        (".build_flags.remove_input_padding=no", "should be 'enable' or 'disable' in quotes."),
        (".parameters.guided_decoding_backend=foo", "should be 'xgrammar'."),
        (
            ".build_flags.user_buffer=enable",
            "found 'enable' without reduce_fusion and with tensorrt_llm.quantization = 'none'; it is made for "
            "LlamaForCausalLM with 'fp8' and tensorrt_llm.build_flags.reduce_fusion = 'enable'.",
        ),
    ],
)
def test_one_fault_is_told_in_one_sentence(override, text):
    (problem,) = problems_of(trt_case(override))
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
        [".orchestrator=true", ".spawn_processes=false", ".parameters.participant_ids=1"],
        [
            ".orchestrator=true",
            ".spawn_processes=false",
            ".parameters.participant_ids='1, 2'",
            "model.parallelism.tensor=2",
        ],
        ["model.architecture=InternLM2ForCausalLM", "model.trust_remote_code=true"],
        [".parameters.cuda_graph_mode=true", ".parameters.max_tokens_in_paged_kv_cache=100000"],
    ],
)
def test_what_is_possible_is_not_refused(overrides):
    assert problems_of(trt_case(*overrides)) == []


def test_a_name_by_which_the_loader_knows_the_model_is_not_refused(tmp_path):
    own = tmp_path / "exaone-8b.yaml"
    own.write_text(
        (places().models / "llama2-13b.yaml").read_text(encoding="utf-8").replace("base/", f"{places().models}/base/")
    )
    overrides = ("model.architecture=ExaoneForCausalLM", "model.trust_remote_code=true")
    assert problems_of(trt_case(*overrides, model=str(own))) == []


@pytest.mark.parametrize(("stated", "refused"), [({"alibi": False}, False), ({"alibi": True}, True), ({}, True)])
def test_a_local_falcon_says_its_positions_in_config_json(stated, refused, tmp_path):
    sizes = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 65024}
    config = {**sizes, "architectures": ["FalconForCausalLM"], "max_position_embeddings": 4096, **stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = (
        "model.lookahead={default: {max_window_size: 4, max_ngram_size: 3, max_verification_set_size: 4}}",
        "model.gpu_dtype=float16",
    )
    problems = problems_of(trt_case(*overrides, model=str(tmp_path)))
    assert bool(problems) == refused
    assert all("ALiBi" in problem.text for problem in problems)


def test_a_recurrent_model_is_planned_without_reuse():
    case = trt_case("model.architecture=RecurrentGemmaForCausalLM", ".speculation=none")
    assert problems_of(case) == []
    assert case.kv_cache_reuse("none") is False
    assert trt_case(".speculation=none").kv_cache_reuse("none") is True

"""Parameters of the served model and its launch."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.rules.serving import RULES
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    (".parameters.sink_token_length=4", "tensorrt_llm.parameters.sink_token_length", "attends to all"),
    (".parameters.max_attention_window_size=2048", "tensorrt_llm.parameters.max_attention_window_size", "attends"),
    (
        ".parameters.guided_decoding_backend=xgrammar .parameters.xgrammar_tokenizer_info_path=x.json",
        "tensorrt_llm.parameters.guided_decoding_backend",
        "exclude",
    ),
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
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []

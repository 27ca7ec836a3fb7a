"""Sizes of the engine that do not go together."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.rules.sizes import RULES
from pipeline.config.resolution import resolve_config
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
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
    (".speculation=trie engine.max_num_tokens=2048", "engine.max_num_tokens", "enable_chunked_context to true"),
    (".speculation=both engine.max_num_tokens=4095", "engine.max_num_tokens", "sends prompt, output and drafts"),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []


def test_one_sequence_at_a_time_gets_the_tokens_that_it_holds():
    """The setting of the lookahead paper; trtllm-build would cap the number itself and warn."""
    resolved = resolve_config("llama2-13b", "latency", ("backend=tensorrt_llm", "engine.max_batch_size=1"))
    plan = plan_for(resolved)
    flags = plan.engines[0].build.flags
    assert flags["max_seq_len"] == flags["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].build.expected["max_num_tokens"] == 4096 - 79
    assert plan.engines[0].instance.limits.longest_prompt == 4096 - 79
    assert any("engine gets 4017" in note for note in plan.notes)

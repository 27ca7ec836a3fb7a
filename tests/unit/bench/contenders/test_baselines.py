"""The transformers baselines: counts of tokens, passes and drafts agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.bench.contenders.baselines import load_baselines
from pipeline.bench.contenders.contender import Contender
from pipeline.bench.data.workload import Prompt
from tests.fakes import make_request

PROMPT = (5, 6, 7, 8, 5, 6, 7, 8, 5, 6)
TEXT = Prompt(("text",))


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model so small that it soon repeats itself, which prompt lookup then guesses."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("engine")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def baselines(engine_dir: Path) -> list[Contender]:
    return load_baselines(["hf", "hf-prompt-lookup"], engine_dir, "float32", "cpu", max_seq_len=80)


def test_both_give_the_same_tokens_and_their_steps_add_up(baselines: list[Contender]) -> None:
    request = make_request(PROMPT, 60)
    greedy, lookup = (baseline.generate(request, TEXT) for baseline in baselines)
    assert greedy.output_ids == lookup.output_ids
    for generation in (greedy, lookup):
        assert len(generation.output_ids) == sum(generation.acceptance_lengths) == 60
        assert len(generation.acceptance_lengths) == generation.steps
        assert min(generation.acceptance_lengths) >= 1
        assert 0 < generation.ttft_s <= generation.seconds
    assert (greedy.steps, greedy.draft_tokens, greedy.accepted_tokens) == (60, 0, 0)
    assert lookup.steps < 60
    assert lookup.accepted_tokens == 60 - lookup.steps <= lookup.draft_tokens


def test_an_end_token_ends_the_output_and_is_part_of_it(baselines: list[Contender]) -> None:
    whole = baselines[0].generate(make_request(PROMPT, 30), TEXT).output_ids
    end = whole[4]
    for baseline in baselines:
        generation = baseline.generate(make_request(PROMPT, 30, end_ids=frozenset({end})), TEXT)
        assert generation.output_ids == whole[: whole.index(end) + 1]
        assert generation.finish_reason == "end_token"


def test_outputs_end_where_the_engine_is_full(baselines: list[Contender]) -> None:
    for baseline in baselines:
        generation = baseline.generate(make_request(PROMPT, 100), TEXT)
        assert len(PROMPT) + len(generation.output_ids) == 80
        assert generation.finish_reason == "length"

"""The torch engine: passes over trees, commits, cache reuse, and outputs equal to transformers'."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pipeline.decoding.request import SamplingParams
from pipeline.decoding.tree import DraftTree, chain, path_to
from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.submission import Submission
from pipeline.engine.torch import attention
from pipeline.engine.torch.engine import TorchEngine, num_rows
from pipeline.errors import BuildError, BusyError
from tests.fakes import HostileSource, make_request, make_scheduler
from tests.unit.engine.torch.devices import DEVICE
from tests.unit.engine.torch.plain_passes import rows_beside
from tests.unit.engine.torch.segments import draft_trees

VOCAB_SIZE = 24
LIMITS = EngineLimits(max_batch_size=4, max_seq_len=96, max_num_tokens=256, max_draft_tokens=32, vocab_size=VOCAB_SIZE)


def tiny_model() -> PreTrainedModel:
    """In float64 rounding cannot decide between two tokens, so equality of token ids can be asked of random weights."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    return model.eval()


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(tiny_model().to(DEVICE), LIMITS, num_slots=6)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return tiny_model()


def reference_logits(reference: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """[vocab] logits after tokens, by one plain pass of transformers' own model without any cache."""
    with torch.inference_mode():
        return reference(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()


def greedy(reference: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(reference_logits(reference, tokens).argmax()))
    return tokens[len(prompt) :]


tokens_strategy = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)


@settings(max_examples=25)
@given(st.lists(st.tuples(tokens_strategy, draft_trees(10, VOCAB_SIZE)), min_size=1, max_size=4))
def test_a_tree_pass_over_several_sequences_equals_each_path_alone(
    engine: TorchEngine, reference: PreTrainedModel, entries: list[tuple[list[int], DraftTree]]
) -> None:
    sequences = [engine.open(np.asarray(prompt)) for prompt, _ in entries]
    results = engine.verify([VerifyItem(s, tree) for s, (_, tree) in zip(sequences, entries, strict=True)])
    for (prompt, tree), logits in zip(entries, results, strict=True):
        assert logits is not None
        for node in range(-1, len(tree)):
            path = tree.token_ids[path_to(tree, node)].tolist() if node >= 0 else []
            expected = reference_logits(reference, prompt + path)
            np.testing.assert_allclose(logits.row(node + 1), expected, atol=2e-4)
            assert logits.choices[node + 1] == logits.row(node + 1).argmax()
    for sequence in sequences:
        engine.release(sequence)


@settings(max_examples=15)
@given(tokens_strategy, draft_trees(10, VOCAB_SIZE), st.data())
def test_the_cache_after_a_commit_is_that_of_plain_decoding(
    engine: TorchEngine, reference: PreTrainedModel, prompt: list[int], tree: DraftTree, data: st.DataObject
) -> None:
    # Drawn first: a draw may end the example, and the engine is shared.
    node = data.draw(st.integers(-1, len(tree) - 1))
    path = path_to(tree, node) if node >= 0 else []
    kept = [*tree.token_ids[path].tolist(), data.draw(st.integers(0, VOCAB_SIZE - 1))]
    sequence = engine.open(np.asarray(prompt))
    engine.verify([VerifyItem(sequence, tree)])
    engine.commit(sequence, path, kept)
    assert sequence.num_cached_tokens == len(prompt) + len(path)
    (logits,) = engine.verify([VerifyItem(sequence)])
    assert logits is not None
    np.testing.assert_allclose(logits.row(0), reference_logits(reference, prompt + kept), atol=2e-4)
    keys = engine._cache.keys[:, sequence.index, :, : sequence.num_cached_tokens].clone()
    engine.release(sequence)
    fresh_engine = TorchEngine(tiny_model().to(DEVICE), LIMITS, num_slots=4)
    fresh = fresh_engine.open(np.asarray(prompt + kept))
    fresh_engine.verify([VerifyItem(fresh)])
    torch.testing.assert_close(
        keys, fresh_engine._cache.keys[:, fresh.index, :, : len(prompt + kept)], atol=2e-4, rtol=0
    )


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(engine: TorchEngine, reference: PreTrainedModel) -> None:
    prompt = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB_SIZE, 50)]
    sequence = engine.open(np.asarray(prompt))
    for num_pending in (7, 20, 10):
        assert engine.verify([VerifyItem(sequence, num_pending=num_pending)]) == [None]
    (logits,) = engine.verify([VerifyItem(sequence, chain([3, 4]))])
    assert logits is not None
    np.testing.assert_allclose(logits.row(2), reference_logits(reference, [*prompt, 3, 4]), atol=2e-4)
    engine.release(sequence)


def test_a_continued_sequence_reuses_its_cache(reference: PreTrainedModel) -> None:
    engine = TorchEngine(tiny_model().to(DEVICE), LIMITS, num_slots=4)
    first = engine.open(np.asarray([1, 2, 3, 4, 5]))
    assert first.num_reused_tokens == 0
    (logits,) = engine.verify([VerifyItem(first, chain([9, 9]))])
    assert logits is not None
    token = int(logits.choices[0])
    engine.commit(first, [], [token])
    engine.release(first)
    with pytest.raises(AssertionError, match="released once"):  # its slot may belong to another sequence
        engine.release(first)
    again = engine.open(np.asarray([1, 2, 3, 4, 5, token]))
    assert again.num_reused_tokens == 5
    assert again.index == first.index
    other = engine.open(np.asarray([1, 2, 3, 7, 7]))
    assert other.num_reused_tokens == 3
    for sequence, tokens in ((again, [1, 2, 3, 4, 5, token]), (other, [1, 2, 3, 7, 7])):
        (logits,) = engine.verify([VerifyItem(sequence)])
        assert logits is not None
        np.testing.assert_allclose(logits.row(0), reference_logits(reference, tokens), atol=2e-4)
    assert engine.reuse.num_hits == 2
    assert engine.reuse.num_reused_tokens == 8


def test_the_least_recently_used_sequence_is_forgotten_first() -> None:
    engine = TorchEngine(tiny_model().to(DEVICE), LIMITS, num_slots=2)
    prompts = [np.asarray([token] * 6) for token in (1, 2, 3)]
    for prompt in prompts[:2]:
        sequence = engine.open(prompt)
        engine.verify([VerifyItem(sequence)])
        engine.release(sequence)
    third = engine.open(prompts[2])
    engine.verify([VerifyItem(third)])
    assert engine.open(prompts[1]).num_reused_tokens == 5
    with pytest.raises(BusyError):
        engine.open(prompts[0])


def test_a_dropped_engine_frees_its_cache() -> None:
    gc.freeze()  # then the search for garbage visits only what this test has created
    engine = TorchEngine(tiny_model().to(DEVICE), LIMITS)
    cache = weakref.ref(engine._cache)
    del engine
    gc.collect()
    assert cache() is None


@pytest.mark.parametrize("tokens", [[], [1] * 97, [1, VOCAB_SIZE], [-1]])
def test_tokens_that_do_not_fit_are_refused(engine: TorchEngine, tokens: list[int]) -> None:
    with pytest.raises(AssertionError):
        engine.open(np.asarray(tokens, np.int64))


def test_top_k_are_the_most_probable_tokens(engine: TorchEngine, reference: PreTrainedModel) -> None:
    sequence = engine.open(np.asarray([1, 2, 3]))
    (logits,) = engine.verify([VerifyItem(sequence, chain([4]))])
    assert logits is not None
    ids, probabilities = logits.top_k(5)
    expected = torch.softmax(torch.from_numpy(reference_logits(reference, [1, 2, 3, 4])), 0)
    assert ids.shape == probabilities.shape == (2, 5)
    assert ids[1].tolist() == expected.argsort(descending=True)[:5].tolist()
    assert (probabilities[1] >= expected[ids[1]].numpy() - 1e-6).all()
    assert (np.diff(probabilities[1]) <= 0).all()
    assert probabilities[1].sum() <= 1 + 1e-6
    engine.release(sequence)


@settings(max_examples=8)
@given(st.lists(tokens_strategy, min_size=1, max_size=6), st.sampled_from([0.0, 1.0]), st.integers(0, 50))
def test_generation_with_drafts_equals_plain_decoding(
    engine: TorchEngine, prompts: list[list[int]], temperature: float, seed: int
) -> None:
    def run(strategy: str) -> list[list[int]]:
        scheduler = make_scheduler(HostileSource(seed), engine=engine, budget=(12, 6), prefill_chunk=8)
        sampling = SamplingParams(temperature=temperature, seed=seed)
        return [
            result.output_ids
            for result in scheduler.run(
                [Submission(make_request(prompt, 15, sampling=sampling), strategy) for prompt in prompts]
            )
        ]

    assert run("trie") == run("none")


def test_greedy_output_is_that_of_transformers(engine: TorchEngine, reference: PreTrainedModel) -> None:
    scheduler = make_scheduler(engine=engine, prefill_chunk=8)
    (result,) = scheduler.run([Submission(make_request([5, 6, 7], 20), "none")])
    assert result.output_ids == greedy(reference, [5, 6, 7], 20)


def test_packed_float32_layers_compute_the_same(reference: PreTrainedModel) -> None:
    engine = TorchEngine(tiny_model().float().to(DEVICE), LIMITS)
    sequence = engine.open(np.asarray([1, 2, 3]))
    (logits,) = engine.verify([VerifyItem(sequence, chain([4, 5]))])
    assert logits is not None
    np.testing.assert_allclose(logits.row(2), reference_logits(reference, [1, 2, 3, 4, 5]), atol=1e-3)


@given(st.integers(0, 5000))
def test_passes_have_few_numbers_of_rows_and_room_for_all_tokens(count: int) -> None:
    assert count <= num_rows(count) <= count + 63
    assert num_rows(num_rows(count)) == num_rows(count)
    assert num_rows(count) == count or count > 40


def test_rows_of_no_sequence_change_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = np.arange(1, 50, dtype=np.int32) % 20

    def rows() -> np.ndarray:
        engine.forget_cached()
        sequence = engine.open(prompt)
        (logits,) = engine.verify([VerifyItem(sequence, chain([3, 4, 5]))])
        assert logits is not None
        engine.release(sequence)
        return np.stack([logits.row(index) for index in range(4)])

    padded = rows()
    monkeypatch.setattr("pipeline.engine.torch.engine.num_rows", lambda count: count)

    assert len(padded) == 4
    np.testing.assert_allclose(padded, rows(), rtol=1e-4, atol=1e-4)


def test_a_cache_that_does_not_fit_is_refused_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "available_bytes", lambda: 1000)
    with pytest.raises(BuildError, match=r"A KV cache of \d+ sequences .* takes .* GB; 0.0 GB are available on cpu"):
        TorchEngine(tiny_model(), LIMITS)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_draft_whose_activations_are_not_finite_changes_no_other_row(value: float) -> None:
    model = tiny_model().to(DEVICE)
    model.get_input_embeddings().weight.data[8] = value
    engine = TorchEngine(model, LIMITS)

    assert np.array_equal(rows_beside(engine, 8), rows_beside(engine, 2))

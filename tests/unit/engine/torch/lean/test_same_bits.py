"""A token's logits have the same bits in any pass: alone, in a chain, in a tree, beside other sequences, over a cache
that was computed in other pieces, with one thread or two."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.tree import DraftTree, path_to, tree_from_lists
from pipeline.engine.contract import EngineSequence, VerifyItem
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.engine.torch.lean.tables import rotation_table
from tests.unit.engine.torch.lean.models import LIMITS, VARIANTS, VOCAB_SIZE, lean_engine, tiny_model
from tests.unit.engine.torch.segments import draft_trees


@cache
def engine_of(variant: str, kind: str, num_threads: int) -> LeanEngine:
    with TemporaryDirectory() as folder:  # its weights are mapped and stay readable
        return lean_engine(tiny_model(variant), kind, Path(folder), num_threads)  # type: ignore[arg-type]


def alone(engine: LeanEngine, tokens: list[int]) -> np.ndarray:
    """[vocab] logits after tokens, one row per pass."""
    engine.forget_cached()
    sequence = engine.open(np.asarray(tokens))
    result = None
    while sequence.num_pending:
        (result,) = engine.verify([VerifyItem(sequence, num_pending=1)])
    engine.release(sequence)
    assert result is not None
    return result.row(0).copy()


tokens_strategy = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(VARIANTS)),
    st.sampled_from(["float32", "bfloat16", "int8"]),
    st.lists(st.tuples(tokens_strategy, st.integers(0, 40), draft_trees(30, VOCAB_SIZE)), min_size=1, max_size=4),
    st.data(),
)
def test_every_row_has_the_bits_of_plain_decoding(
    variant: str, kind: str, entries: list[tuple[list[int], int, DraftTree]], data: st.DataObject
) -> None:
    engine = engine_of(variant, kind, data.draw(st.sampled_from([1, 2])))
    engine.forget_cached()
    sequences: list[EngineSequence] = []
    for tokens, num_cached, _ in entries:
        sequences.append(engine.open(np.asarray(tokens)))
        first = min(num_cached, sequences[-1].num_pending - 1)
        if first > 0:
            engine.verify([VerifyItem(sequences[-1], num_pending=first)])
    trees = [tree for _, _, tree in entries]
    results = engine.verify([VerifyItem(s, tree) for s, tree in zip(sequences, trees, strict=True)])
    rows = []
    for result, tree in zip(results, trees, strict=True):
        assert result is not None
        rows.append(np.stack([result.row(node) for node in range(len(tree) + 1)]))
    # Accepted nodes move to where plain decoding has them; the next token sees them there.
    nexts, histories = [], []
    for sequence, (tokens, _, tree) in zip(sequences, entries, strict=True):
        path = path_to(tree, data.draw(st.integers(0, len(tree) - 1))) if len(tree) else []
        kept = [*tree.token_ids[path].tolist(), 3]
        engine.commit(sequence, path, kept)
        histories.append(tokens + kept)
    for after in engine.verify([VerifyItem(sequence) for sequence in sequences]):
        assert after is not None
        nexts.append(after.row(0).copy())
    for sequence in sequences:
        engine.release(sequence)
    plain = engine_of(variant, kind, 1)
    for (tokens, _, tree), found, following, history in zip(entries, rows, nexts, histories, strict=True):
        for node in {-1, *data.draw(st.sets(st.integers(0, max(0, len(tree) - 1)), max_size=3))}:
            if node < len(tree):
                path = tree.token_ids[path_to(tree, node)].tolist() if node >= 0 else []
                assert found[node + 1].tobytes() == alone(plain, tokens + path).tobytes()
        assert following.tobytes() == alone(plain, history).tobytes()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("variant", ["llama", "wide"])
def test_passes_of_1_to_128_rows_agree(variant: str, kind: str, num_threads: int) -> None:
    engine = engine_of(variant, kind, num_threads)
    random = np.random.default_rng(1)
    tokens = random.integers(0, VOCAB_SIZE, 20).tolist()
    drafts = random.integers(0, VOCAB_SIZE, 127).tolist()
    bits: dict[int, bytes] = {}
    for count in (1, 2, 3, 5, 8, 9, 16, 31, 64, 127, 128):
        engine.forget_cached()
        sequence = engine.open(np.asarray(tokens))
        engine.verify([VerifyItem(sequence, num_pending=len(tokens) - 1)])
        tree = tree_from_lists(drafts[: count - 1], list(range(-1, count - 2)))
        (result,) = engine.verify([VerifyItem(sequence, tree)])
        assert result is not None
        for row in range(count):
            assert bits.setdefault(row, result.row(row).tobytes()) == result.row(row).tobytes(), (count, row)
        engine.release(sequence)


# Of the logits below.
DIGESTS = {"float32": "b104f69dc9d93bfb", "int8": "e9eb30976b142efd"}


@pytest.mark.parametrize("kind", DIGESTS)
def test_logits_have_the_same_bits_on_every_processor(kind: str, tmp_path: Path) -> None:
    """So a request can move between machines. `make test-kernels` repeats this with the code for older processors."""
    model = tiny_model("biases", hidden_size=128, intermediate_size=176)
    numbers = np.random.default_rng(3)  # torch's random numbers depend on the processor
    for parameter in model.parameters():
        parameter.data = torch.from_numpy(numbers.integers(-512, 513, parameter.shape).astype(np.float32) / 1024)
    engine = lean_engine(model, kind, tmp_path, 2)  # type: ignore[arg-type]
    engine._rotation = rotation_table((0.5 ** np.arange(16)).astype(np.float32), LIMITS.max_seq_len, 1.0)
    sequence = engine.open(np.arange(150) % VOCAB_SIZE)
    (result,) = engine.verify([VerifyItem(sequence, tree_from_lists([3, 4, 5, 6], [-1, -1, 1, 2]))])
    assert result is not None
    rows = [result.row(node).tobytes() for node in range(5)]
    assert hashlib.sha256(b"".join(rows)).hexdigest()[:16] == DIGESTS[kind]

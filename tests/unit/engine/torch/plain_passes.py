"""Compares passes over chunks, trees and commits with plain passes over each path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from pipeline.decoding.tree import path_to, tree_from_lists
from pipeline.engine.contract import Engine, VerifyItem


def row_of(model: PreTrainedModel, tokens: list[int]) -> npt.NDArray[np.floating]:
    """[vocab] logits of the last token, by one pass over all of them."""
    row: npt.NDArray[np.floating] = _rows_of(model, [tokens])[0]
    return row


def _rows_of(model: PreTrainedModel, texts: list[list[int]]) -> npt.NDArray[np.floating]:
    """[texts, vocab] logits of the last token of each text, by one causal pass. Padding comes after a text."""
    longest = max(map(len, texts))
    with torch.inference_mode():
        logits = model(
            torch.tensor([text + text[-1:] * (longest - len(text)) for text in texts]), use_cache=False
        ).logits
    rows: npt.NDArray[np.floating] = logits[range(len(texts)), [len(text) - 1 for text in texts]].numpy()
    return rows


def rows_beside(engine: Engine, token: int) -> list[npt.NDArray[np.floating]]:
    """Logits of the root and of a node, beside a branch of drafts of this token."""
    engine.forget_cached()
    sequence = engine.open(np.arange(1, 7))
    (logits,) = engine.verify([VerifyItem(sequence, tree_from_lists([token, token, 3], [-1, 0, -1]))])
    assert logits is not None
    rows = [logits.row(0).copy(), logits.row(3).copy()]
    engine.release(sequence)
    return rows


def worst_difference(engine: Engine, reference: PreTrainedModel, num_tokens: int = 20, num_first: int = 9) -> float:
    """Largest difference of a logit from that of a plain pass, relative to the largest logit of its row.

    num_tokens: length of the prompt. num_first: how many of its tokens the first pass takes.
    """
    vocab_size = engine.limits.vocab_size
    random = np.random.default_rng(0)
    tokens = random.integers(1, vocab_size, num_tokens).tolist()
    sequence = engine.open(np.asarray(tokens))
    engine.verify([VerifyItem(sequence, num_pending=num_first)])
    texts: list[list[int]] = []
    rows: list[npt.NDArray[np.floating]] = []
    for _ in range(3):
        tree = tree_from_lists(random.integers(1, vocab_size, 8).tolist(), [-1, -1, 0, 1, 1, 2, 4, 6])
        (logits,) = engine.verify([VerifyItem(sequence, tree)])
        assert logits is not None
        for node in range(-1, len(tree)):
            texts.append(tokens + tree.token_ids[path_to(tree, node)].tolist())
            rows.append(logits.row(node + 1).copy())
        assert logits.choices.tolist() == np.argmax(rows[-len(tree) - 1 :], axis=1).tolist()
        path = path_to(tree, 6)
        kept = [*tree.token_ids[path].tolist(), int(random.integers(1, vocab_size))]
        engine.commit(sequence, path, kept)
        tokens += kept
    expected = _rows_of(reference, texts)
    return float((np.abs(rows - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())

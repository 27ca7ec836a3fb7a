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
    with torch.inference_mode():
        logits: npt.NDArray[np.floating] = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
    return logits


def worst_difference(engine: Engine, reference: PreTrainedModel, num_tokens: int = 20, num_first: int = 9) -> float:
    """Largest difference of a logit from that of a plain pass, relative to the largest logit of its row.

    num_tokens: length of the prompt. num_first: how many of its tokens the first pass takes.
    """
    vocab_size = engine.limits.vocab_size
    random = np.random.default_rng(0)
    tokens = random.integers(1, vocab_size, num_tokens).tolist()
    sequence = engine.open(np.asarray(tokens))
    engine.verify([VerifyItem(sequence, num_pending=num_first)])
    worst = 0.0
    for _ in range(3):
        tree = tree_from_lists(random.integers(1, vocab_size, 8).tolist(), [-1, -1, 0, 1, 1, 2, 4, 6])
        (logits,) = engine.verify([VerifyItem(sequence, tree)])
        assert logits is not None
        for node in range(-1, len(tree)):
            row = logits.row(node + 1)
            assert logits.choices[node + 1] == row.argmax()
            expected = row_of(reference, tokens + tree.token_ids[path_to(tree, node)].tolist())
            difference = np.abs(row - expected).max() / np.abs(expected).max()
            worst = float(np.maximum(worst, difference))  # stays NaN, unlike max
        path = path_to(tree, 6)
        kept = [*tree.token_ids[path].tolist(), int(random.integers(1, vocab_size))]
        engine.commit(sequence, path, kept)
        tokens += kept
    return worst

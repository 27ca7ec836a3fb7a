"""Perplexity of an engine over texts, and the rate at which two engines agree on the most probable token.

It measures the loss of quality by quantization, with the same texts on an engine in float32 and one in int8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from lookahead_research.recording import text_logits
from pipeline.config.schema import Frozen
from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import Engine
from pipeline.errors import UserError
from pipeline.json_lines import reading


class TextScore(Frozen):
    """One text. nll: sum of -log p of its tokens after the first one. choices: the most probable token before each."""

    text_id: str
    token_ids: tuple[int, ...]
    nll: float
    choices: tuple[int, ...]


class Scores(Frozen):
    """All texts under one engine."""

    model: str
    quantization: str
    dtype: str
    texts: tuple[TextScore, ...] = Field(min_length=1)

    @property
    def num_tokens(self) -> int:
        """Number of predicted tokens."""
        return sum(len(text.choices) for text in self.texts)

    @property
    def perplexity(self) -> float:
        """exp of the mean nll of a predicted token."""
        return math.exp(sum(text.nll for text in self.texts) / self.num_tokens)


def score_texts(
    engine: Engine, texts: Sequence[tuple[str, IntArray]], on_text: Callable[[str], None] = lambda text_id: None
) -> list[TextScore]:
    """Score (id, tokens) texts of at least two tokens each. Texts are truncated to the engine's max_seq_len."""
    scores = []
    for text_id, token_ids in texts:
        scores.append(_score(engine, text_id, token_ids[: engine.limits.max_seq_len]))
        on_text(text_id)
    return scores


def agreement(mine: Scores, others: Scores) -> float:
    """Share of positions at which both engines have the same most probable token. Both have scored the same texts."""
    same = sum(
        left == right
        for one, other in zip(mine.texts, others.texts, strict=True)
        for left, right in zip(one.choices, other.choices, strict=True)
    )
    return same / mine.num_tokens


def require_same_texts(texts: Sequence[tuple[str, IntArray]], others: Scores, max_seq_len: int) -> None:
    """Raise UserError if others are not the scores of these (id, tokens) texts."""
    if [tuple(tokens[:max_seq_len].tolist()) for _, tokens in texts] != [text.token_ids for text in others.texts]:
        raise UserError("The two sets of scores are of different texts or tokenizers; use the same --data for both.")


def load_scores(path: Path) -> Scores:
    """Read a file of `lookahead research perplexity --json`. Raises UserError if it is not one."""
    try:
        with reading(path):
            return Scores.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise UserError(f"{path} has no scores; give a file of `lookahead research perplexity --json`.") from error


def _score(engine: Engine, text_id: str, token_ids: IntArray) -> TextScore:
    nll, choices = 0.0, list[int]()
    for position, row in enumerate(text_logits(engine, token_ids), 1):
        if position < len(token_ids):  # no token follows the last one
            logits = np.asarray(row, np.float64)
            largest = logits.max()
            nll += float(np.log(np.exp(logits - largest).sum()) + largest - logits[token_ids[position]])
            choices.append(int(logits.argmax()))
    return TextScore(text_id=text_id, token_ids=tuple(token_ids.tolist()), nll=nll, choices=tuple(choices))

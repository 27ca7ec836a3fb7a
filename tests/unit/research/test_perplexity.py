"""Perplexity is exp of the mean -log p of each token after the first, whatever the passes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from lookahead_research.perplexity import Scores, TextScore, agreement, load_scores, require_same_texts, score_texts

from pipeline.errors import UserError
from tests.fakes import VOCAB_SIZE, TableEngine, table_logits


def scores(texts: list[TextScore], quantization: str = "none") -> Scores:
    return Scores(model="m", quantization=quantization, dtype="float32", texts=tuple(texts))


def plain_nll(tokens: list[int]) -> float:
    total = 0.0
    for place in range(1, len(tokens)):
        logits = np.asarray(table_logits(tokens[:place]), np.float64)
        total -= math.log(np.exp(logits - logits.max())[tokens[place]] / np.exp(logits - logits.max()).sum())
    return total


@pytest.mark.parametrize("length", [2, 40, 200])
def test_the_sum_is_that_of_one_token_at_a_time(length: int) -> None:
    engine = TableEngine()
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, length).astype(np.int32)
    (score,) = score_texts(engine, [("t", tokens)])
    assert not engine.held
    assert score.nll == pytest.approx(plain_nll(tokens.tolist()), rel=1e-5)
    assert score.choices == tuple(int(np.argmax(table_logits(tokens[:place].tolist()))) for place in range(1, length))
    assert scores([score]).perplexity == pytest.approx(math.exp(score.nll / (length - 1)))


def test_a_text_ends_where_the_engine_is_full() -> None:
    engine = TableEngine(limits=dataclasses.replace(TableEngine().limits, max_seq_len=16))
    (score,) = score_texts(engine, [("t", np.zeros(50, np.int32))])
    assert len(score.choices) == 15


def test_agreement_counts_equal_choices_of_the_same_texts() -> None:
    one = scores([TextScore(text_id="a", token_ids=(1, 2, 3, 4, 5), nll=1.0, choices=(7, 7, 7, 7))])
    other = scores([TextScore(text_id="a", token_ids=(1, 2, 3, 4, 5), nll=1.0, choices=(7, 8, 7, 7))])
    assert agreement(one, other) == 0.75


def test_scores_of_other_texts_are_refused_before_anything_is_scored() -> None:
    known = scores([TextScore(text_id="a", token_ids=(1, 2, 3), nll=1.0, choices=(7, 7))])
    require_same_texts([("a", np.asarray([1, 2, 3, 4], np.int32))], known, max_seq_len=3)
    for tokens in ([1, 2], [1, 2, 4]):
        with pytest.raises(UserError, match="different texts"):
            require_same_texts([("a", np.asarray(tokens, np.int32))], known, max_seq_len=3)


def test_scores_load_again_and_other_files_are_refused(tmp_path: Path) -> None:
    whole = scores([TextScore(text_id="a", token_ids=(1, 2), nll=1.0, choices=(7,))], "int8")
    path = tmp_path / "scores.json"
    path.write_text(whole.model_dump_json())
    assert load_scores(path) == whole
    path.write_text("{}")
    with pytest.raises(UserError, match="has no scores"):
        load_scores(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_scores(tmp_path / "none.json")

"""Log probabilities with and without drafts and grammars."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.log_probs import LogitOptions, log_softmax
from pipeline.decoding.request import SamplingParams
from pipeline.engine.submission import Submission
from tests.fakes import HostileSource, make_request, table_logits
from tests.grammars import END
from tests.unit.engine.grammar_requests import make_scheduler, regex


@pytest.mark.parametrize("guide", [None, regex("(ab|x1|21|12){6}")])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_the_targets_own_and_the_same_with_drafts(
    guide: Guide | None, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, repetition_penalty=1.2)
    request = make_request(prompt=[4, 5, 6, 7] * 6, sampling=sampling, guide=guide, end_ids=frozenset({END}))
    wanted = LogitOptions(log_probs=True, num_top=3, prompt=True, generation_logits=True, context_logits=True)
    drafted, without = (
        make_scheduler(HostileSource(broken=0.0)).run([Submission(request, strategy, wanted=wanted)])[0]
        for strategy in ("trie", "none")
    )
    assert drafted.output_ids == without.output_ids
    for one, other in zip(drafted.log_probs, without.log_probs, strict=True):
        assert one[:3] == other[:3]
    context = request.prompt_ids.tolist()
    # An end token has none.
    for token, (value, ids, top, row) in zip(drafted.output_ids, drafted.log_probs, strict=False):
        logits = table_logits(context)
        assert np.array_equal(row, logits)
        assert value == log_softmax(logits)[token]
        assert ids == np.argsort(-logits, kind="stable")[:3].tolist()
        assert top == log_softmax(logits)[ids].tolist()
        context.append(token)
    assert len(drafted.log_probs) == len([token for token in drafted.output_ids if token != END])
    assert drafted.prompt is not None
    prompt = request.prompt_ids.tolist()
    rows = [table_logits(prompt[: end + 1]) for end in range(len(prompt))]
    assert np.array_equal(np.stack(drafted.prompt.rows), np.stack(rows))
    values = [log_softmax(row)[token] for row, token in zip(rows[:-1], prompt[1:], strict=True)]
    assert [token.value for token in drafted.prompt.log_probs] == values


def test_log_probabilities_of_a_prompt_keep_no_logits() -> None:
    """Those of a long prompt filled the memory, and computing all at its end held up other requests."""
    wanted = LogitOptions(log_probs=True, prompt=True)
    (result,) = make_scheduler().run([Submission(make_request(prompt=[4, 5] * 20), "none", wanted=wanted)])
    assert result.prompt is not None
    assert not result.prompt.rows
    assert [token.row for token in result.prompt.log_probs] == [None] * 39

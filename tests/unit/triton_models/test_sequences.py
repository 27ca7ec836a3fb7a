"""Several outputs of one prompt through the BLS model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from pipeline.errors import RequestError
from pipeline.triton_models.sequences import TextResponse, all_responses
from pipeline.triton_models.single_response import WORKING_MODELS, forwarded
from pipeline.triton_models.tensors import Tensors
from tests.unit.triton_models.fakes import TableTarget
from tests.unit.triton_models.test_bls import make_bls, run, run_in
from tests.unit.triton_models.test_bls_tokens import PROMPT_IDS, ids_of, token_tensors


async def all_answers(tensors: dict[str, Any], target: TableTarget | None = None) -> list[TextResponse]:
    return [answer async for answer in all_responses(make_bls(target).answer, tensors)]


@pytest.mark.parametrize("stream", [False, True])
def test_each_output_is_that_of_a_request_with_its_seed(stream):
    options = {"temperature": 1.3, "stream": stream}
    answers = run(all_answers(token_tensors(PROMPT_IDS, 25, seed=7, num_return_sequences=3, **options)))

    outputs = {
        index: ids_of([answer for answer in answers if answer.tensors["sequence_index"].item() == index])
        for index in range(3)
    }
    for index, output in outputs.items():
        alone = token_tensors(PROMPT_IDS, 25, **options) | {"seed": np.asarray([[7 + index]], np.uint64)}
        assert output == ids_of(run_in(make_bls(), alone))
    assert len({tuple(output) for output in outputs.values()}) == 3
    assert {answer.tensors["batch_index"].item() for answer in answers} == {0}
    assert [answer.last for answer in answers] == [False] * (len(answers) - 1) + [True]


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_that_makes_no_sense_is_refused(count):
    with pytest.raises(RequestError, match=rf"num_return_sequences is {count}; it must be in 1 \.\. 64"):
        run(all_answers(token_tensors(PROMPT_IDS, 5, num_return_sequences=count)))


def test_an_error_of_one_is_raised_and_leaving_early_cancels_all():
    with pytest.raises(RequestError, match="max_tokens"):
        run(all_answers(token_tensors(PROMPT_IDS, 0, num_return_sequences=2)))

    async def leave() -> TableTarget:
        target = TableTarget()
        answers = all_responses(
            make_bls(target).answer, token_tensors(PROMPT_IDS, 40, num_return_sequences=2, stream=True, strategy="none")
        )
        await anext(answers)
        await answers.aclose()
        await asyncio.sleep(0)
        return target

    assert run(leave()).engine.held == []


def test_an_error_of_one_while_the_client_leaves_stops_the_others_once():
    async def leave() -> list[str]:
        log: list[str] = []
        has_stopped = asyncio.Event()

        async def answer(tensors: Tensors) -> AsyncGenerator[TextResponse, None]:
            if "seed" in tensors:  # the second one
                raise RequestError("wrong")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append("cancelled")
                await has_stopped.wait()
                log.append("stopped")
                raise
            yield TextResponse({}, last=True)

        async def read() -> None:
            async with aclosing(all_responses(answer, token_tensors(PROMPT_IDS, 5, num_return_sequences=2))) as answers:
                async for _ in answers:
                    pass

        reader = asyncio.create_task(read())
        while not log and not reader.done():
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.sleep(0)
        has_stopped.set()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return log

    assert run(leave()) == ["cancelled", "stopped"]


@pytest.mark.parametrize("model", WORKING_MODELS.values(), ids=lambda model: model.name)
def test_a_model_with_one_response_refuses_several_outputs(model):
    with pytest.raises(RequestError, match="which answers once per output"):
        forwarded(token_tensors(PROMPT_IDS, 5, num_return_sequences=2), model)

"""Outputs on which the detokenizer of Dynamo's front end panics."""

from __future__ import annotations

import openai
import pytest
from tokenizers import Tokenizer

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import Fleet
from tests.integration.openai_requests import MODEL, text
from tests.integration.servers import prepared, settled_metrics

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_an_output_that_completes_a_character_of_the_prompt_is_an_error_after_one_run(
    client: openai.OpenAI, openai_fleet: Fleet, shared_where: Folders, stream: bool, max_tokens: int
) -> None:
    """max_tokens: number of the last bytes that the prompt lacks. If Dynamo answers these requests, the gateway's
    `_BROKEN` and the limitation in `openai.md` are obsolete."""
    tokenizer = Tokenizer.from_file(str(prepared(shared_where).artifact.tokenizer_dir / "tokenizer.json"))
    ids = tokenizer.encode("\U0001f618", add_special_tokens=False).ids  # the UTF-8 bytes F0 9F 98 98
    assert len(ids) == 4
    num_requests = settled_metrics(openai_fleet).get("lookahead_requests_total", 0)
    before = text(client)
    settled_metrics(openai_fleet, requests_total=num_requests)

    with pytest.raises(openai.APIError, match="could not turn the output into text"):
        list(
            client.completions.create(
                model=MODEL,
                prompt=ids[:-max_tokens],
                max_tokens=max_tokens,
                temperature=0,
                logit_bias={str(ids[-1]): 100},
                stream=stream,
            )
        )

    after = settled_metrics(openai_fleet, requests_total=num_requests + 1)
    assert after["lookahead_requests_total"] == num_requests + 2
    assert text(client) == before

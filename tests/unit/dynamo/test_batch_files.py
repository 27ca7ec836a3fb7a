"""Lines of batch files, and the text for a failed request."""

from __future__ import annotations

import json

import pytest

from pipeline.dynamo.openai_batch import failure_text, read_batch
from pipeline.errors import UserError


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/responses"])
def test_separators_of_lines_in_a_text_end_no_line(url, tmp_path):
    path = tmp_path / "in.jsonl"
    body = {"prompt": "one\u2028two\x85three"}
    line = {"custom_id": "a", "url": url, "body": body}
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8")

    assert [request.body for request in read_batch(path)] == [body]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_requests_is_refused(content, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(content)

    with pytest.raises(UserError, match=f"{path} has no requests"):
        read_batch(path)


@pytest.mark.parametrize("content", [None, b'{"custom_id": "\xff"}'])
def test_a_file_that_cannot_be_read_is_named(content, tmp_path):
    path = tmp_path / "in.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UserError, match=f"{path} cannot be read"):
        read_batch(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"custom_id":', r"line 2 is not JSON: Expecting value at column 14\."),
        ("[]", r"line 2: not an object"),
        ('{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "line 2: method and url"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": 3}', "line 2: body"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}', "line 2: body"),
        ('{"custom_id": "one", "url": "/v1/completions", "body": {}}', "'one' occurs twice; give each its own"),
    ],
)
def test_a_line_that_is_no_request_is_named(line, sentence, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": {}}\n' + line + "\n")

    with pytest.raises(UserError, match=sentence):
        read_batch(path)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"error": {"message": "no such model"}}, "one got status 404: no such model"),
        ({"detail": 3}, 'one got status 404: {"detail": 3}'),
    ],
)
def test_a_failed_request_is_described_with_its_reason(body, sentence):
    assert failure_text({"custom_id": "one", "response": {"status_code": 404, "body": body}}) == sentence


def test_a_long_id_does_not_fill_the_terminal():
    result = {"custom_id": "x" * 3_000_000, "response": {"status_code": 400, "body": {}}}

    assert failure_text(result) == "x" * 80 + " got status 400: {}"

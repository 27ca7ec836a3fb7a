"""Guides that the scheduler refuses, and requests while a guide is being compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.matcher import Matcher
from pipeline.decoding.request import FinishReason
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import GenerationResult, StepEvent, Submission
from pipeline.errors import BusyError, RequestError
from tests import fakes
from tests.fakes import make_request
from tests.grammars import vocabulary
from tests.patience import PATIENCE_S
from tests.unit.engine.grammar_requests import make_scheduler, regex, schema


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide("xml", "<a/>"), "the guide type is 'xml'; it must be one of json, json_schema"),
        (regex(""), "the guide of type regex is empty"),
        (regex("a" * (1 << 19)), "has 524288 bytes; at most 262144"),
        (Guide("json_schema", "{"), "not valid JSON"),
        (Guide("json_schema", "[1]"), "is a JSON list; it must be a dict"),
        (Guide("json_schema", '{"const": NaN}'), "not valid JSON"),
        (Guide("json_schema", '{"maximum": 1e400}'), "not valid JSON"),
        (Guide("json_schema", "false"), "Unsatisfiable schema"),
        (Guide("choice", "[]"), "list of strings that are not empty"),
        (Guide("structural_tag", "{}"), "structures"),
        (schema({"type": "strin"}), "Invalid type: strin"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable schema"),
        (schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "requires itself"),
        (regex("(a"), r"cannot be used: .*regex parse error: unclosed group$"),
        (schema({"type": "string", "pattern": "[a"}), "regex parse error: unclosed character class$"),
        (Guide("ebnf_grammar", "start: start"), "permits no output"),
        (Guide("ebnf_grammar", "root ::= nothing"), "cannot be used|neither GBNF nor Lark"),
    ],
)
def test_a_guide_that_cannot_be_used_is_refused_in_one_sentence(guide: Guide, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        make_scheduler().run([Submission(make_request(guide=guide))])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_grammar_that_crashes_its_compiler_is_refused() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(6500)} | {"a6500": {"const": "ab"}}
    with pytest.raises(RequestError, match="nests too deeply"):
        make_scheduler().run([Submission(make_request(guide=schema({"$ref": "#/$defs/a0", "$defs": chain})))])


@pytest.fixture
def slow() -> Iterator[tuple[Scheduler, threading.Event]]:
    """A scheduler that serves in a thread, and whose compiler waits for an event."""
    event = threading.Event()

    def load() -> object:
        assert event.wait(PATIENCE_S)
        return vocabulary()

    scheduler = fakes.make_scheduler(compiler=Compiler(load))  # type: ignore[arg-type]
    scheduler.start()
    yield scheduler, event
    event.set()
    scheduler.close()


def test_no_request_waits_for_another_ones_grammar(slow: tuple[Scheduler, threading.Event]) -> None:
    scheduler, may_compile = slow
    guided, cancelled, other = make_request(guide=regex("(ab)+")), make_request(guide=regex("x+")), make_request()
    ended: dict[str, StepEvent] = {}
    finished = {request.request_id: threading.Event() for request in (guided, cancelled, other)}

    def on_event(event: StepEvent) -> None:
        if event.done:
            ended[event.request_id] = event
            finished[event.request_id].set()

    for request in (guided, cancelled, other):
        scheduler.submit(Submission(request, "trie"), on_event)
    assert finished[other.request_id].wait(PATIENCE_S)
    scheduler.cancel(cancelled.request_id)
    assert finished[cancelled.request_id].wait(PATIENCE_S)
    assert guided.request_id not in ended
    assert ended[cancelled.request_id].finish_reason is FinishReason.CANCELLED
    may_compile.set()
    assert finished[guided.request_id].wait(PATIENCE_S)
    assert ended[guided.request_id].error is None


def test_a_failure_of_one_requests_masks_ends_that_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    masks_of, calls = Matcher.masks_of, count()

    def failing(matcher: Matcher, *arguments: Any) -> Any:
        if next(calls) == 0:
            raise MemoryError
        return masks_of(matcher, *arguments)

    monkeypatch.setattr(Matcher, "masks_of", failing)
    scheduler, results = make_scheduler(), [GenerationResult(), GenerationResult()]
    for result in results:
        scheduler.submit(Submission(make_request(guide=regex("(ab)+")), "none"), result.take)
    while scheduler._queue.known:
        scheduler._wait_for_work()
        scheduler.step()
    assert isinstance(results[0].error, MemoryError)
    assert results[1].error is None
    assert results[1].output_ids


def test_the_guide_of_a_refused_request_is_not_compiled() -> None:
    """A client that sends new guides to a busy server would otherwise fill the compiler's queue."""
    compiler = Mock(Compiler)
    scheduler = fakes.make_scheduler(max_queue_size=1, compiler=compiler)
    num_places = scheduler.engine.limits.max_batch_size + 1
    for _ in range(num_places):
        scheduler.submit(Submission(make_request(guide=regex("a"))), lambda event: None)
    with pytest.raises(BusyError, match="1 requests are waiting"):
        scheduler.submit(Submission(make_request(guide=regex("b"))), lambda event: None)
    scheduler.close()
    with pytest.raises(BusyError, match="shutting down"):
        scheduler.submit(Submission(make_request(guide=regex("c"))), lambda event: None)
    assert compiler.matcher.call_count == num_places

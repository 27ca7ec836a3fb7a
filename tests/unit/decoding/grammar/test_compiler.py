"""The cache of compiled guides."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pipeline.decoding.grammar import compiler as module
from pipeline.decoding.grammar.checker import PARENT_STACK_BYTES
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.grammar.guide import Guide
from tests.grammars import vocabulary
from tests.patience import PATIENCE_S


def test_the_cache_stays_bounded_if_grammars_of_dropped_guides_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUM_KEPT", 2)
    compiler, guides = Compiler(vocabulary), [Guide("regex", "a" * length) for length in range(1, 7)]
    for guide in guides:
        compiler._compile(guide).result()
    for guide in guides[:3]:  # their requests still run
        compiler._renewed(guide)
    compiler._compile(Guide("regex", "b")).result()

    assert len(compiler._compiled) == 2
    compiler.close()


def test_workers_have_a_larger_stack_than_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    before, sizes, start = threading.stack_size(), [], threading.Thread.start

    def started(thread: threading.Thread) -> None:
        sizes.append(threading.stack_size())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    compiler = Compiler(vocabulary)
    compiler.matcher(Guide("regex", "a"), frozenset()).result()
    compiler.close()

    assert set(sizes) == {PARENT_STACK_BYTES}
    assert threading.stack_size() == before


def test_a_guide_is_compiled_although_the_process_that_checks_was_killed() -> None:
    """It was refused as too large, for as long as the refusal was cached."""
    compiler = Compiler(vocabulary)
    compiler._compile(Guide("regex", "a")).result()
    child = compiler._checkers._idle
    assert child is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    compiler._compile(Guide("regex", "b")).result()
    compiler.close()


def test_a_guide_is_compiled_again_after_a_failure_that_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, guide = Compiler(vocabulary), Guide("regex", "a")
    with monkeypatch.context() as patch:
        patch.setattr(compiler._checkers, "check", lambda grammar: Path("/no/such/file").read_text())
        with pytest.raises(FileNotFoundError):
            compiler._compile(guide).result()
    compiler._compile(guide).result()
    compiler.close()


@contextmanager
def many_open_files(count: int) -> Iterator[None]:
    """A process with this number of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2 * count:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count, before[1]))
    try:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(Path(os.devnull).open("rb"))
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_guide_is_compiled_by_a_process_with_many_connections() -> None:
    compiler = Compiler(vocabulary)
    with many_open_files(1100):
        compiler._compile(Guide("regex", "a")).result()
    compiler.close()


def test_a_grammar_that_takes_long_delays_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, may_end = Compiler(vocabulary), threading.Event()
    check = compiler._checkers.check

    def checked(grammar: str) -> str:
        assert "abab" not in grammar or may_end.wait(PATIENCE_S)
        return check(grammar)

    monkeypatch.setattr(compiler._checkers, "check", checked)
    slow = [compiler.matcher(Guide("regex", "abab"), frozenset()) for _ in range(3)]
    try:
        compiler.matcher(Guide("regex", "b"), frozenset()).result(PATIENCE_S / 10)
        assert not any(matcher.done() for matcher in slow)
    finally:
        may_end.set()
    assert len({id(matcher.result(PATIENCE_S)) for matcher in slow}) == 3
    compiler.close()

"""Compiles guides to matchers in worker threads, so that no request waits for another request's grammar."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from llguidance import LLMatcher, LLTokenizer

from pipeline.decoding.grammar.checker import PARENT_STACK_BYTES, Checkers, parser_limits
from pipeline.decoding.grammar.guide import Guide, check_guide
from pipeline.decoding.grammar.matcher import Ends, Matcher
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.errors import RequestError
from pipeline.heap import trim_heap

T = TypeVar("T")
P = ParamSpec("P")

# Maximum number of cached grammars (refused ones too), and of cached matchers of finished outputs.
_NUM_KEPT = 64
_NUM_THREADS = 2
# Length of the quoted part of the compiler's message, which may contain the whole grammar.
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens for llguidance. vocab_size: of the logits. end_id: end token of requests without end tokens.
    special_tokens: tokens that are not text."""

    tokenizer: LLTokenizer
    vocab_size: int
    end_id: int
    special_tokens: frozenset[str]


def load_vocabulary(
    tokenizer_json: str, vocab_size: int, end_id: int, special_tokens: frozenset[str] = frozenset()
) -> Vocabulary:
    """Return the vocabulary of a tokenizer, in about half a second. tokenizer_json: content of a tokenizer.json. Raises
    RequestError if llguidance does not support the tokenizer."""
    try:
        tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=end_id)
    except ValueError as error:
        raise RequestError(f"this model's tokenizer does not support grammars: {error}") from error
    trim_heap()
    return Vocabulary(tokenizer, vocab_size, end_id, special_tokens)


class Compiler:
    """Compiles guides, with a cache. Thread safe."""

    def __init__(self, load: Callable[[], Vocabulary]) -> None:
        """load: returns the vocabulary; called once, in a worker thread, for the first guide or by `preload`."""
        self._load = load
        self._loading = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._checkers = Checkers()
        self._lock = threading.RLock()
        # Templates: matchers at the start of their grammar, which are copied.
        self._compiled: OrderedDict[Guide, Future[LLMatcher]] = OrderedDict()
        self._kept: OrderedDict[tuple[Guide, tuple[int, ...]], Matcher] = OrderedDict()
        self._workers = ThreadPoolExecutor(_NUM_THREADS, "grammar")

    @property
    def vocabulary(self) -> Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def preload(self) -> None:
        """Load the vocabulary in a worker thread."""
        self._submit(lambda: self.vocabulary)

    def matcher(self, guide: Guide, end_ids: frozenset[int], output_ids: Sequence[int] = ()) -> Future[Matcher]:
        """Return a future of the matcher after output_ids. The future raises RequestError if the guide cannot be
        compiled or does not permit output_ids. Raises RequestError at once if `check_guide` does."""
        check_guide(guide)
        with self._lock:
            kept = self._kept.pop((guide, tuple(output_ids)), None)
        result: Future[Matcher] = Future()
        if kept is not None and kept.end_ids == self._ends(end_ids).end_ids:
            result.set_result(kept)
            return result
        compiled, finish = self._compile(guide), partial(self._finish, result, guide, end_ids, output_ids)
        if compiled.done():
            self._submit(finish, compiled)
        else:  # a worker that waited for this grammar could compile no other one meanwhile
            compiled.add_done_callback(finish)
        return result

    def keep(self, guide: Guide, matcher: Matcher) -> None:
        """Cache the matcher of a finished output, which another request may continue."""
        with self._lock:
            self._kept[guide, tuple(matcher.token_ids)] = matcher
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)

    def close(self) -> None:
        """End the worker threads and processes."""
        self._workers.shutdown(cancel_futures=True)
        self._checkers.close()

    def _submit(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Run a call in a worker thread. If this starts the thread, it gets a larger stack than the check has."""
        with self._lock:
            before = threading.stack_size(PARENT_STACK_BYTES)
            try:
                return self._workers.submit(call, *args, **named)
            finally:
                threading.stack_size(before)

    def _compile(self, guide: Guide) -> Future[LLMatcher]:
        with self._lock:
            compiled = self._compiled.get(guide)
            if compiled is None or _has_failed(compiled):
                compiled = self._compiled[guide] = self._submit(self._template, guide)
                while len(self._compiled) > _NUM_KEPT:  # `_renewed` may have added to them
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(guide)
        return compiled

    def _template(self, guide: Guide) -> LLMatcher:
        grammar = grammar_text(guide, self.vocabulary.special_tokens)
        fault = self._checkers.check(grammar)
        if not fault:
            template = self._new(grammar)
            fault = _fault_of(template)
        if fault:
            raise RequestError(f"the guide of type {guide.kind} cannot be used: {_short(fault)}")
        return template

    def _new(self, grammar: str) -> LLMatcher:
        return LLMatcher(self.vocabulary.tokenizer, grammar, limits=parser_limits(), log_level=0)

    def _finish(
        self,
        result: Future[Matcher],
        guide: Guide,
        end_ids: frozenset[int],
        output_ids: Sequence[int],
        compiled: Future[LLMatcher],
    ) -> None:
        """Complete the future of a matcher whose guide was compiled or refused."""
        try:
            renew = partial(self._renewed, guide)
            matcher = Matcher(compiled.result(), self.vocabulary.vocab_size, self._ends(end_ids), renew)
            matcher.consume(output_ids)
            result.set_result(matcher)
        except Exception as error:
            result.set_exception(error)

    def _ends(self, end_ids: frozenset[int]) -> Ends:
        """The ends of a request with these end tokens, without tokens outside the vocabulary."""
        vocabulary = self.vocabulary
        known = frozenset(token for token in end_ids if 0 <= token < vocabulary.vocab_size)
        return Ends(vocabulary.end_id, known or frozenset({vocabulary.end_id}))

    def _renewed(self, guide: Guide) -> LLMatcher:
        """A new matcher of a guide whose template has met a limit. Also replaces the template for later requests."""
        grammar = grammar_text(guide, self.vocabulary.special_tokens)
        renewed: Future[LLMatcher] = Future()
        renewed.set_result(self._new(grammar))
        with self._lock:
            self._compiled[guide] = renewed
        return self._new(grammar)


def _has_failed(compiled: Future[LLMatcher]) -> bool:
    """Whether a compilation has failed for another reason than its guide, such as a lack of memory."""
    if not compiled.done() or compiled.cancelled():
        return False
    error = compiled.exception()
    return error is not None and not isinstance(error, RequestError)


def _fault_of(template: LLMatcher) -> str:
    """The reason why a compiled grammar permits no output; empty if it permits some."""
    if not template.is_error():
        template.compute_bitmask()
        if template.is_stopped() and not template.is_accepting():
            return "it permits no output at all"
    return template.get_error() if template.is_error() else ""


def _short(message: str) -> str:
    """The first line of the compiler's message, shortened; the grammar's text follows it. For a regular expression also
    the reason, which follows its text."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [message]
    line = lines[0] + next((line.removeprefix("error:") for line in lines if line.startswith("error: ")), "")
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."

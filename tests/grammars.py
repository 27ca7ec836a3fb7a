"""A vocabulary of a few tokens that grammars can use, and the plain loop that masks token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.decoding.grammar.compiler import Compiler, Vocabulary, load_vocabulary
from pipeline.decoding.grammar.masks import TokenMask
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.sampling import choose_token

TOKENS = [*'{}[]":,ab12x', "ab", "aba", '":', '{"', '"}', "bb", "21", "x1", "<end>", "<stop>", "<tool>", "<pad>"]
END, STOP, VOCAB_SIZE = TOKENS.index("<end>"), TOKENS.index("<stop>"), len(TOKENS)


@cache
def vocabulary(*unused: str) -> Vocabulary:
    """24 tokens: single characters, merges of them, and special tokens, with others before these."""
    tokens = [*TOKENS[:END], *unused, *TOKENS[END:]]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("a", "b"), ("ab", "a"), ('"', ":"), ("{", '"'), ('"', "}"), ("b", "b"), ("2", "1"), ("x", "1")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in tokens if token.startswith("<")]
    tokenizer.add_special_tokens(special)
    return load_vocabulary(tokenizer.to_str(), len(tokens), tokens.index("<end>"), frozenset(special))


@cache
def compiler() -> Compiler:
    return Compiler(vocabulary)


def spelled(token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    return "".join(TOKENS[token] for token in token_ids if not TOKENS[token].startswith("<"))


@cache
def _matcher(grammar: str) -> LLMatcher:
    """A matcher before the first token, to be copied: compiling a grammar takes a hundred times as long."""
    return LLMatcher(vocabulary().tokenizer, grammar)


def plain_guided_decode(
    request: GenerationRequest,
    grammar: str,
    logits_of: Callable[[Sequence[int]], np.ndarray],
    max_seq_len: int = 256,
) -> list[int]:
    """The reference: one token at a time, each under a mask that a fresh matcher computes from all output so far."""
    end_ids = request.end_ids or frozenset({END})
    tokens, output = request.prompt_ids.tolist(), []
    while len(output) < request.max_new_tokens and len(tokens) < max_seq_len:
        matcher = _matcher(grammar).deep_copy()
        assert matcher.try_consume_tokens(output) == len(output)
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:VOCAB_SIZE]
        may_end = bool(allowed[END])
        allowed[[END, *end_ids]] = 0
        allowed[list(end_ids)] = may_end
        padded = np.zeros(-(-VOCAB_SIZE // 32) * 32, np.uint8)
        padded[:VOCAB_SIZE] = allowed
        mask = TokenMask(np.packbits(padded, bitorder="little").view(np.int32))
        if set(np.flatnonzero(allowed)) == end_ids:
            token = min(end_ids)
        else:
            token = choose_token(request, logits_of(tokens), np.asarray(tokens, np.int32), mask)
        tokens.append(token)
        output.append(token)
        if token in end_ids or any(tuple(output[-len(stop) :]) == stop for stop in request.stop_sequences):
            break
    return output

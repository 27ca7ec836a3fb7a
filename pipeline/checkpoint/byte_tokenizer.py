"""A tokenizer that needs no training data. Its tokens are the bytes, common pairs of letters, and four special tokens,
so it decodes any text to the same text."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, TURN_START, TURN_END = "<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"
SPECIAL_TOKENS = (BOS, EOS, TURN_START, TURN_END)

# Frequent English letters; pairs of them become tokens, so that test texts have tokens longer than a byte.
_LETTERS = "etaoinshrdlucmfwygpb"
_MIN_VOCAB = 256 + len(SPECIAL_TOKENS)
_MAX_VOCAB = _MIN_VOCAB + len(_LETTERS) ** 2

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + TURN_START
    + "{{ message['role'] }}\n{{ message['content'] }}"
    + TURN_END
    + "\n{% endfor %}{% if add_generation_prompt %}"
    + TURN_START
    + "assistant\n{% endif %}"
)


def byte_tokenizer(vocab_size: int, max_len: int) -> PreTrainedTokenizerFast:
    """Create the tokenizer. Ids 0 - 3 are the special tokens, 4 - 259 the bytes, the rest pairs. Raises CheckpointError
    for an impossible size."""
    if not _MIN_VOCAB <= vocab_size <= _MAX_VOCAB:
        raise CheckpointError(
            f"model.checkpoint.config.vocab_size: found {vocab_size}; should be {_MIN_VOCAB} to {_MAX_VOCAB}."
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.islice(itertools.product(_LETTERS, _LETTERS), vocab_size - _MIN_VOCAB))
    tokens = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        additional_special_tokens=[TURN_START, TURN_END],
        model_max_length=max_len,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer

"""Creates a checkpoint of random weights for a transformers config class, with a byte-level tokenizer. The same seed
gives the same bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoint.architectures import check_architecture
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import atomic_folder, locked_folder, require_space
from pipeline.checkpoint.local import open_folder
from pipeline.checkpoint.model_config import check_layers, reason
from pipeline.checkpoint.tokenizer_files import save_tokenizer
from pipeline.config.faults import did_you_mean
from pipeline.config.schema import RandomCheckpoint
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

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
    """Create a tokenizer that needs no training data, and that decodes any text to the same text. Ids 0 - 3 are the
    special tokens, 4 - 259 the bytes, the rest pairs. Raises CheckpointError for an impossible size."""
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


# Required for every class, because the tokenizer depends on them.
_NEEDED = ("vocab_size", "max_position_embeddings")

# Increase when this file creates other bytes from the same settings.
_RECIPE = 1


def random_hash(source: RandomCheckpoint, architecture: str) -> str:
    """Content hash, without creating the checkpoint. Includes the versions of the libraries that draw the weights."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")}
    parts = [_RECIPE, architecture, source.model_dump(mode="json"), versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def make_random(source: RandomCheckpoint, architecture: str, num_parameters: int, cache_dir: Path) -> Checkpoint:
    """Create the checkpoint, or open it from the cache. Raises CheckpointError if the config class rejects the
    settings."""
    check_architecture(architecture, "The model config's architecture")
    content_hash = random_hash(source, architecture)
    folder = cache_dir / "random" / content_hash[:16]
    if not (folder / "config.json").is_file():
        require_space(folder, 4 * num_parameters, "Making a random checkpoint", CheckpointError)
        with locked_folder(folder.parent):
            if not (folder / "config.json").is_file():  # another process may have made it meanwhile
                with atomic_folder(folder) as partial:
                    _write(source, architecture, partial)
    return open_folder(folder, architecture, cache_dir, content_hash)


def _write(source: RandomCheckpoint, architecture: str, folder: Path) -> None:
    import torch
    import transformers

    vocab_size, max_len = (source.config.get(name) for name in _NEEDED)
    if not isinstance(vocab_size, int) or not isinstance(max_len, int):
        raise CheckpointError(f"model.checkpoint.config: {' and '.join(_NEEDED)} should be whole numbers.")
    tokenizer = byte_tokenizer(vocab_size, max_len)
    model_class = getattr(transformers, architecture)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng():
        torch.manual_seed(source.seed)
        try:
            config = model_class.config_class(**{**special, **source.config})
            _refuse_unknown(source, config)
            check_layers(config, "model.checkpoint.config")
            model = model_class(config)
        except CheckpointError:
            raise
        except Exception as error:  # values of a wrong type may raise anything
            raise CheckpointError(
                f"{architecture} cannot be made from model.checkpoint.config: {reason(error)}."
            ) from error
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def _refuse_unknown(source: RandomCheckpoint, config: PretrainedConfig) -> None:
    """Raise CheckpointError for unknown settings, which a config class would store as attributes. Accepts older names
    of known settings."""
    known = {*_NEEDED, *(field.name for field in dataclasses.fields(config)), *config.attribute_map}
    for key in source.config:
        if key not in known and hasattr(config, key):
            raise CheckpointError(
                f"model.checkpoint.config.{key}: unknown key of {type(config).__name__}.{did_you_mean(key, known)}"
            )

"""The tokenizer of a GGUF file encodes text as llama.cpp and the original do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.errors import CheckpointError
from tests.unit.checkpoint.sources import train_pieces, write_tensors

PLAIN, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
ALPHABET = sorted(ByteLevel.alphabet())
TEXTS = ("the cat sat on the mat", "größe 日本語 🎉", "twice  two\n\nlines", " lead", "trail ", "   ", "\ttab")


def write_gguf(folder: Path, model: str, tokens: Sequence[str], kinds: Sequence[int], **settings: Any) -> Path:
    """A file without tensors. settings: below `tokenizer.ggml`."""
    writer = GGUFWriter(folder / "a.gguf", "llama")
    writer.add_tokenizer_model(model)
    if tokens:
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
    for name, value in settings.items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_string(f"tokenizer.ggml.{name}", value)
    write_tensors(writer)
    return folder


def written(folder: Path) -> Any:
    """The tokenizer of an artifact."""
    write_tokenizer(Checkpoint(folder, "a.gguf", "LlamaForCausalLM", "", ()), folder / "tokenizer")
    return AutoTokenizer.from_pretrained(folder / "tokenizer")


def byte_level(folder: Path, *special: str, merges: Sequence[str] = ("a b",), extra: str = "", **settings: Any) -> Any:
    """A tokenizer of bytes and merges. special: control tokens, the first being BOS and the last EOS. extra: a token
    that no merge makes."""
    plain = [*ALPHABET, *(merge.replace(" ", "") for merge in merges), *([extra] if extra else [])]
    kinds = [PLAIN] * len(plain) + [CONTROL] * len(special)
    ids = {"bos_token_id": len(plain), "eos_token_id": len(kinds) - 1} if special else {}
    chosen = {"merges": list(merges), **ids, **settings}
    return written(write_gguf(folder, "gpt2", [*plain, *special], kinds, **chosen))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("smollm", ["ĊĊ", "1", "2", "Ġ", "3"]),
        ("qwen2", ["ĊĊ", "1", "2", "Ġ", "3"]),
        ("llama-bpe", ["ĊĊ", "12", "Ġ", "3"]),
        ("gpt-2", ["Ċ", "Ċ", "12", "Ġ3"]),
    ],
)
def test_text_is_split_by_the_files_rule(rule: str, expected: list[str], tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, merges=["Ċ Ċ", "1 2", "Ġ 3"], pre=rule)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n12 3")) == expected


def test_a_rule_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="splits text by the rule 'deepseek-llm'"):
        byte_level(tmp_path, pre="deepseek-llm")


def test_a_file_for_llama_3_has_bos_and_whole_words(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, "<|begin|>", "<|end|>", extra="abc", pre="llama-bpe")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("abc")) == ["<|begin|>", "abc"]


@pytest.mark.parametrize(("adds", "expected"), [(True, ["<b>", "a"]), (False, ["a"])])
def test_the_file_states_whether_bos_is_added(adds: bool, expected: list[str], tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, "<b>", "<e>", pre="llama-bpe", add_bos_token=adds)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a")) == expected


def test_a_padding_token_outside_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, "<b>", "<e>", pre="gpt-2", padding_token_id=len(ALPHABET) + 3)
    assert (tokenizer.pad_token, len(tokenizer)) == (None, len(ALPHABET) + 3)


def test_special_tokens_outside_the_byte_alphabet_keep_their_ids(tmp_path: Path) -> None:
    """As in DeepSeek-R1-Distill-Qwen. transformers gives BOS and EOS new ids, and cuts the others into bytes."""
    begin, user, end = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"
    tokenizer = byte_level(tmp_path, begin, user, end, pre="deepseek-r1-qwen", add_bos_token=True)
    first = len(ALPHABET) + 1
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (first, first + 2, first + 3)
    ids = tokenizer.encode(f"{user}a")
    assert ids == [first, first + 1, ALPHABET.index("a")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"


def test_defined_tokens_are_matched_as_they_are_spelled(tmp_path: Path) -> None:
    tokens = [*ALPHABET, "    ", "<think>", "ab"]
    kinds = [PLAIN] * len(ALPHABET) + [USER_DEFINED] * 2 + [PLAIN]
    tokenizer = written(write_gguf(tmp_path, "gpt2", tokens, kinds, merges=["a b"], pre="gpt-2"))
    ids = tokenizer.encode("<think>    a")
    assert ids == [len(ALPHABET) + 1, len(ALPHABET), ALPHABET.index("a")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>    a"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> sentencepiece.SentencePieceProcessor:
    return train_pieces(tmp_path_factory.mktemp("pieces") / "tokenizer", TEXTS)


def of_pieces(folder: Path, pieces: sentencepiece.SentencePieceProcessor, **settings: Any) -> Any:
    def kind(number: int) -> int:
        if pieces.is_unknown(number):
            return UNKNOWN
        return CONTROL if pieces.is_control(number) else BYTE if pieces.is_byte(number) else PLAIN

    numbers = range(pieces.vocab_size())
    scores = [float(pieces.get_score(number)) for number in numbers]
    tokens, kinds = [pieces.id_to_piece(number) for number in numbers], [kind(number) for number in numbers]
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return written(write_gguf(folder, "llama", tokens, kinds, scores=scores, **ids, **settings))


def test_pieces_are_those_of_sentencepiece(pieces: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    tokenizer = of_pieces(tmp_path, pieces)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == [1, *pieces.encode(text)], text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.encode("<s>the", add_special_tokens=False) == [1, *pieces.encode("the")]


def test_a_file_may_state_no_space_before_text(pieces: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    tokenizer = of_pieces(tmp_path, pieces, add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode(" the") == pieces.encode("the")
    assert tokenizer.encode("the") != pieces.encode("the")
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_other_files_of_the_folder_are_not_read(pieces: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(pieces.serialized_model_proto())
    assert len(byte_level(tmp_path, "<b>", "<e>", pre="gpt-2")) == len(ALPHABET) + 3


@pytest.mark.parametrize(
    ("model", "tokens", "expected"),
    [("gpt2", [], "has no tokenizer"), ("bert", ["a"], "has a tokenizer of type 'bert'")],
)
def test_other_tokenizers_are_refused(model: str, tokens: list[str], expected: str, tmp_path: Path) -> None:
    write_gguf(tmp_path, model, tokens, [PLAIN] * len(tokens))
    with pytest.raises(CheckpointError, match=expected) as caught:
        written(tmp_path)
    assert "cannot be read" not in str(caught.value)

"""The models `preprocessing` and `postprocessing`, with the tensors of TensorRT-LLM's models of these names."""

from __future__ import annotations

import numpy as np

from pipeline.errors import RequestError
from pipeline.triton_models.tensors import (
    Array,
    Tensors,
    int_tensor,
    integer,
    pack_word_list,
    require_one_row,
    text,
    texts,
)
from pipeline.triton_models.text_codec import TextCodec

_IMAGES = ("IMAGE_BYTES", "IMAGE_URL", "IMAGE_SIZES", "VIDEO_BYTES")


def preprocess(codec: TextCodec, tensors: Tensors, add_special_tokens: bool) -> dict[str, Array]:
    """Output tensors of `preprocessing` for one prompt. Raises RequestError for images or several rows."""
    require_one_row(tensors)
    if found := [name for name in _IMAGES if name in tensors]:
        raise RequestError(f"{found[0]} was sent; this model takes text only")
    ids = codec.encode(text(tensors, "QUERY") or "", add_special_tokens)
    decoder_ids = codec.encode(text(tensors, "DECODER_QUERY") or "", add_special_tokens=False)
    end_id, pad_id = integer(tensors, "END_ID"), integer(tensors, "PAD_ID")
    words = texts(tensors, "EMBEDDING_BIAS_WORDS")
    weights = tensors.get("EMBEDDING_BIAS_WEIGHTS", np.empty(0, np.float32)).reshape(-1).tolist()
    bias = codec.embedding_bias(words, weights)
    bad, stop = (codec.encode_words(texts(tensors, name)) for name in ("BAD_WORDS_DICT", "STOP_WORDS_DICT"))
    return {
        "INPUT_ID": ids[None],
        "REQUEST_INPUT_LEN": int_tensor(len(ids)),
        # A tensor must not be empty. The length 0 marks the value as unused.
        "DECODER_INPUT_ID": decoder_ids[None] if len(decoder_ids) else int_tensor(codec.pad_id),
        "REQUEST_DECODER_INPUT_LEN": int_tensor(len(decoder_ids)),
        "BAD_WORDS_IDS": pack_word_list(bad)[None],
        "STOP_WORDS_IDS": pack_word_list(stop)[None],
        "EMBEDDING_BIAS": (np.zeros(codec.vocab_size, np.float32) if bias is None else bias)[None],
        "REQUEST_OUTPUT_LEN": tensors["REQUEST_OUTPUT_LEN"].astype(np.int32),
        "OUT_END_ID": int_tensor(codec.end_id if end_id is None else end_id),
        "OUT_PAD_ID": int_tensor(codec.pad_id if pad_id is None else pad_id),
        "OUT_PROMPT_TABLE_EXTRA_IDS": np.zeros((1, 1), np.uint64),
    }


def postprocess(codec: TextCodec, tensors: Tensors, skip_special_tokens: bool) -> dict[str, Array]:
    """Output OUTPUT [rows * beams] of `postprocessing`: text of each beam of TOKENS_BATCH [rows, beams, len], cut to
    SEQUENCE_LENGTH [rows, beams]. Raises RequestError for invalid lengths or tokens."""
    tokens, lengths = tensors["TOKENS_BATCH"], tensors["SEQUENCE_LENGTH"]
    if lengths.shape != tokens.shape[:2]:
        raise RequestError(
            f"SEQUENCE_LENGTH has shape {list(lengths.shape)}, TOKENS_BATCH {list(tokens.shape)}; each beam needs one "
            "length"
        )
    texts = [
        _decoded(codec, *beam, skip_special_tokens)
        for row, row_lengths in zip(tokens, lengths, strict=True)
        for beam in zip(row, row_lengths.tolist(), strict=True)
    ]
    return {"OUTPUT": np.asarray(texts, np.object_)}


def _decoded(codec: TextCodec, beam: Array, length: int, skip_special_tokens: bool) -> bytes:
    if length < 0:
        raise RequestError(f"SEQUENCE_LENGTH holds {length}; it must be at least 0")
    ids = beam[:length].tolist()
    if any(token < 0 for token in ids):
        raise RequestError(f"TOKENS_BATCH holds the token {min(ids)} within the first {length}; tokens are at least 0")
    return codec.decode(ids, skip_special_tokens).encode()

"""A part of an output, as the BLS model gets it from one call and sends it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipeline.triton_models.logit_pieces import joined
from pipeline.triton_models.tensors import Array


class Piece(NamedTuple):
    """The part of the output from one call. text: empty if the request returns tokens only. logits: outputs with log
    probabilities and logits, if requested."""

    text: str
    token_ids: list[int]
    logits: Mapping[str, Array] = MappingProxyType({})

    def joined(self, other: Piece) -> Piece:
        """Concatenate both; the later logits win."""
        return Piece(self.text + other.text, self.token_ids + other.token_ids)


def output_of(pieces: Sequence[Piece], tokens_only: bool) -> dict[str, Array]:
    output = joined([piece.logits for piece in pieces])
    if tokens_only:
        output["output_ids"] = np.asarray([[token for piece in pieces for token in piece.token_ids]], np.int32)
    else:
        output["text_output"] = np.asarray(["".join(piece.text for piece in pieces).encode()], np.object_)
    return output

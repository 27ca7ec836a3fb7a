"""Lookahead decoding: W, N and G."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.config.schema.base import Frozen


class LookaheadConfig(Frozen):
    """W, N and G of lookahead decoding (arXiv 2402.02057) and where the values come from."""

    max_window_size: int = Field(ge=1, description="W: columns of the window.")
    max_ngram_size: int = Field(ge=1, description="N: length of an n-gram, first token included.")
    max_verification_set_size: int = Field(ge=0, description="G: candidates verified per step.")
    origin: str = Field("unstated", description="Paper, vendor or measurement that the values come from.")

    @model_validator(mode="after")
    def _one_token_grams_need_no_window(self) -> LookaheadConfig:
        if self.max_ngram_size == 1 and (self.max_window_size, self.max_verification_set_size) != (1, 0):
            w, g = self.max_window_size, self.max_verification_set_size
            raise ValueError(
                f"found (W, N, G) = ({w}, 1, {g}); N = 1 switches lookahead off and needs W = 1 and G = 0. "
                "Set those, or N to 2 or more"
            )
        return self

    @property
    def max_draft_len(self) -> int:
        """Draft tokens of one step: the N-1 levels of the window and the candidates, less the token already
        accepted."""
        w, n, g = self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)

"""Lookahead decoding: W, N and G."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.config.schema.base import Frozen


class LookaheadConfig(Frozen):
    """W, N and G of lookahead decoding (arXiv 2402.02057) and the origin of the values."""

    max_window_size: int = Field(ge=1, description="W: columns of the window.")
    max_ngram_size: int = Field(ge=1, description="N: length of an n-gram, including the first token.")
    max_verification_set_size: int = Field(ge=0, description="G: n-grams verified per step.")
    origin: str = Field("unstated", description="Origin of the values: paper, vendor or measurement.")

    @model_validator(mode="after")
    def _one_token_grams_need_no_window(self) -> LookaheadConfig:
        if self.max_ngram_size == 1 and (self.max_window_size, self.max_verification_set_size) != (1, 0):
            w, _, g = self.sizes
            raise ValueError(
                f"found (W, N, G) = ({w}, 1, {g}); N = 1 switches lookahead off and needs W = 1 and G = 0. "
                "Set those, or N to 2 or more"
            )
        return self

    @classmethod
    def of(cls, w: int, n: int, g: int, origin: str = "unstated") -> LookaheadConfig:
        """The config of W, N and G. Raises ValidationError if they are not possible."""
        return cls(max_window_size=w, max_ngram_size=n, max_verification_set_size=g, origin=origin)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.max_window_size, self.max_ngram_size, self.max_verification_set_size

    def exceeds(self, limits: LookaheadConfig) -> bool:
        """Whether W, N or G is larger than in `limits`."""
        return any(mine > limit for mine, limit in zip(self.sizes, limits.sizes, strict=True))

    @property
    def is_off(self) -> bool:
        """Whether this is plain decoding."""
        return self.max_ngram_size == 1

    @property
    def max_draft_len(self) -> int:
        """Number of draft tokens per step: those of the window, and G n-grams. TensorRT-LLM has the same formula."""
        w, n, g = self.sizes
        return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)

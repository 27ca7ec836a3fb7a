"""Sampling noise: standard Gumbel noise, a function of the seed, the absolute position and the token's id alone.

The uniform numbers are those of Philox4x64 as in numpy, with the seed as key and the position as second word of the
counter (Salmon et al., SC 2011). As the generator is counter-based, the noise of single tokens is computed without that
of the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.decoding.compiled import compiled, inlined
from pipeline.decoding.tree import FloatArray

# The generator may return exactly 0, whose logarithm is -inf.
_LEAST = np.float32(2.0**-25)
# Noise lies between -2.9 and 16.7.
NOISE_RANGE = np.float32(20)

_LOW_HALF, _HALF_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
_FACTORS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_KEY_STEPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10
# Floats per block of the generator, two of each word.
_BLOCK = 8


class NoiseKey(NamedTuple):
    """The noise of a request. temperature: 0 for greedy decoding, which has no noise."""

    seed: np.uint64
    temperature: float


NO_NOISE = NoiseKey(np.uint64(0), 0.0)


def gumbel_noise(seed: int, position: int, tokens: NDArray[np.int64]) -> FloatArray:
    """Return the noise [n] of tokens [n >= 1], ascending. position: absolute; 0 is that of the prompt's first token."""
    bits = np.random.Philox(key=seed, counter=[0, position, 0, 0])
    uniform = np.random.Generator(bits).random(int(tokens[-1]) + 1, dtype=np.float32)[tokens]
    noise: FloatArray = -np.log(-np.log(np.maximum(uniform, _LEAST)))
    return noise


@compiled
def token_noise(key: NoiseKey, position: int, token: int) -> float:
    """The noise of one token, times the temperature."""
    words = _words(key.seed, position, token // _BLOCK)
    index = token % _BLOCK
    word = words[0] if index < 2 else words[1] if index < 4 else words[2] if index < 6 else words[3]
    half = (word >> _HALF_BITS) if index % 2 else (word & _LOW_HALF)
    uniform = max(np.float32(half >> np.uint64(8)) * np.float32(2.0**-24), _LEAST)
    return float(-np.log(-np.log(uniform)) * key.temperature)


@compiled
def _words(seed: np.uint64, position: int, block: int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """A block of the generator. numpy begins with counter 1."""
    first, second, third, fourth = np.uint64(block + 1), np.uint64(position), np.uint64(0), np.uint64(0)
    key, other_key = seed, np.uint64(0)
    for _ in range(_ROUNDS):
        first, second, third, fourth = (
            _upper_half(_FACTORS[1], third) ^ second ^ key,
            _FACTORS[1] * third,
            _upper_half(_FACTORS[0], first) ^ fourth ^ other_key,
            _FACTORS[0] * first,
        )
        key, other_key = key + _KEY_STEPS[0], other_key + _KEY_STEPS[1]
    return first, second, third, fourth


@inlined
def _upper_half(one: np.uint64, other: np.uint64) -> np.uint64:
    """The upper 64 of the 128 bits of a product."""
    low = (one & _LOW_HALF) * (other & _LOW_HALF)
    middle = (one >> _HALF_BITS) * (other & _LOW_HALF) + (low >> _HALF_BITS)
    rest = (one & _LOW_HALF) * (other >> _HALF_BITS) + (middle & _LOW_HALF)
    return (one >> _HALF_BITS) * (other >> _HALF_BITS) + (middle >> _HALF_BITS) + (rest >> _HALF_BITS)

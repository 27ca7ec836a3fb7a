"""Sampling noise: its keys, its distribution and range, and the noise of single tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.noise import _LEAST, NO_NOISE, NOISE_RANGE, NoiseKey, gumbel_noise, token_noise


def noise(seed: int, position: int, vocab_size: int) -> np.ndarray:
    return gumbel_noise(seed, position, np.arange(vocab_size))


def test_noise_is_a_function_of_seed_and_position_alone() -> None:
    np.testing.assert_array_equal(noise(3, 7, 100), noise(3, 7, 100))
    assert not np.array_equal(noise(3, 7, 100), noise(3, 8, 100))
    assert not np.array_equal(noise(3, 7, 100), noise(4, 7, 100))
    assert np.isfinite(noise(2**64 - 1, 1 << 20, 50_000)).all()
    np.testing.assert_array_equal(gumbel_noise(3, 7, np.asarray([2, 5, 40])), noise(3, 7, 100)[[2, 5, 40]])


def test_noise_of_neighbouring_positions_is_uncorrelated() -> None:
    correlation = np.corrcoef(noise(0, 1, 50_000), noise(0, 2, 50_000))[0, 1]
    assert abs(correlation) < 0.02


def test_noise_is_the_same_in_every_version() -> None:
    """Users keep seeds: a new release must give the old texts."""
    assert noise(7, 1234, 3).tolist() == pytest.approx([-0.51527, -1.59096, 1.52408], abs=1e-5)


def test_the_noise_keeps_its_range() -> None:
    """Tokens beyond NOISE_RANGE are left out. The generator's floats are multiples of 2^-24 in 0 .. 1 - 2^-24."""
    least, most = (-np.log(-np.log(np.float32(uniform))) for uniform in (2.0**-25, 1 - 2.0**-24))
    assert most - least < NOISE_RANGE
    assert _LEAST == 2.0**-25
    bits = np.random.Generator(np.random.Philox(key=1)).random(100_000, dtype=np.float32) * 2**24
    np.testing.assert_array_equal(bits, bits.round())


@given(st.integers(0, 2**64 - 1), st.integers(0, 1 << 20), st.integers(0, 200_000), st.floats(0.1, 2) | st.just(1.0))
def test_the_noise_of_one_token_is_that_of_the_generator(
    seed: int, position: int, first: int, temperature: float
) -> None:
    tokens = np.arange(first, first + 16)  # two blocks of the generator
    expected = gumbel_noise(seed, position, tokens) * np.float32(temperature)
    found = [token_noise(NoiseKey(np.uint64(seed), temperature), position, token) for token in tokens.tolist()]
    assert found == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)


def test_greedy_decoding_has_no_noise() -> None:
    assert token_noise(NO_NOISE, 3, 4) == 0.0

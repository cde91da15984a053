import copy
import math
import pickle
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream
from sparsedp.randomness.stream import exponential_of

COUNT = 2_000_000
DRAWS: dict[str, Callable[[Stream], object]] = {
    "bytes": lambda s: s.bytes(7),
    "uint64": lambda s: s.uint64(5).tolist(),
    "uniform": lambda s: s.uniform((2, 3)).tolist(),
    "normal": lambda s: s.normal(5).tolist(),
    "exponential": lambda s: s.exponential(3).tolist(),
    "laplace": lambda s: s.laplace(3).tolist(),
    "gumbel": lambda s: s.gumbel(3).tolist(),
    "integers": lambda s: s.integers(3 * 2**61, 40).tolist(),
    "permutation": lambda s: s.permutation(6).tolist(),
    "fork": lambda s: s.fork(3).normal(2).tolist(),
}


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


CONTINUOUS = {
    "uniform": (stats.uniform, 1.01),
    "normal": (stats.norm, 1.01),
    "exponential": (stats.expon, 1.01),
    "laplace": (stats.laplace, 1.01),
    "gumbel": (stats.gumbel_r, 1.01),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_distribution_and_its_scale(name: str, uniform_on_unit: Callable[..., bool]) -> None:
    law, wrong = CONTINUOUS[name]
    sample = getattr(stream(1), name)(COUNT)
    assert np.isfinite(sample).all()
    assert uniform_on_unit(law.cdf(sample))
    assert not uniform_on_unit(law.cdf(sample / wrong))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_both_tails(name: str) -> None:
    """1 in 10^4 on each side, a binomial count with false alarm below 1e-9."""
    law, _ = CONTINUOUS[name]
    sample = getattr(stream(2), name)(COUNT)
    for beyond in (law.sf(sample), law.cdf(sample)):
        count = int((beyond < 1e-4).sum())
        assert stats.binomtest(count, COUNT, 1e-4).pvalue > 1e-9


@pytest.mark.parametrize("lag", [1, COUNT // 2])
def test_normals_are_uncorrelated_and_so_are_their_squares(lag: int) -> None:
    """Pairs share a radius and an angle, half the sample apart; 6 standard errors, false alarm 2e-9."""
    sample = stream(3).normal(COUNT)
    for values in (sample, sample**2 - 1.0):
        first, second = values[:-lag], values[lag:]
        error = math.sqrt((first**2).mean() * (second**2).mean() / first.size)
        assert abs((first * second).mean()) < 6 * error


class Scripted(Stream):
    """A stream whose 64-bit words are given."""

    def __init__(self, word: int) -> None:
        super().__init__("scripted", bytes(32), private=False)
        self.word = word

    def uint64(self, size: int) -> np.ndarray:
        return np.full(size, self.word, dtype=np.uint64)


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_no_word_gives_a_value_that_is_not_finite(name: str, word: int) -> None:
    extreme = Scripted(word)
    values = getattr(extreme, name)(2)
    assert np.isfinite(values).all()
    if name == "uniform":
        assert ((values > 0.0) & (values < 1.0)).all()


def test_exponentials_are_fine_in_both_tails() -> None:
    """The smallest and the largest that 128 bits give, and a relative error of 2^-50 between."""
    assert exponential_of(np.uint64(0), np.uint64(0)) == pytest.approx(2.0**-129)
    assert exponential_of(np.uint64(2**64 - 1), np.uint64(2**64 - 1)) == pytest.approx(129 * math.log(2))
    generator = np.random.default_rng(1)
    with mpmath.workdps(60):
        for bits in range(1, 75):
            high, low = (int(each) for each in generator.integers(0, 2**63, 2))
            for word in (((high << 64) | low) >> bits, (1 << 128) - 1 - (((high << 64) | low) >> bits)):
                found = exponential_of(np.uint64(word >> 64), np.uint64(word & (2**64 - 1)))
                truth = -mpmath.log1p(-(word + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 128)
                assert abs(found / truth - 1) < 2.0**-50


def test_normals_are_multiples_of_a_fine_lattice(uniform_on_unit: Callable[..., bool]) -> None:
    z = stream(12).normal((1000, 500))
    assert z.shape == (1000, 500)
    assert np.array_equal(z * 2.0**44, np.rint(z * 2.0**44))
    assert uniform_on_unit(stats.norm.cdf(z).ravel())


@pytest.mark.parametrize("high", [1, 2, 7, 1000, 3 * 2**61, 2**63])
def test_integers_are_uniform(high: int, agrees: Callable[..., bool]) -> None:
    """3 * 2^61 is where the plain remainder of a word is off by most."""
    sample = stream(4).integers(high, 200_000)
    assert sample.dtype == np.int64
    assert sample.min() >= 0
    assert int(sample.max()) < high
    cells = min(high, 100)
    counts = np.bincount((sample.astype(object) * cells // high).astype(np.int64), minlength=cells)
    assert agrees(counts, np.full(cells, 1.0 / cells)) if cells > 1 else counts[0] == 200_000


def test_the_plain_remainder_would_be_caught(agrees: Callable[..., bool]) -> None:
    sample = stream(4).uint64(200_000) % np.uint64(3 * 2**61)
    counts = np.bincount((sample // np.uint64(2**61)).astype(np.int64), minlength=3)
    assert not agrees(counts, np.full(3, 1 / 3))


def test_permutations_are_uniform(agrees: Callable[..., bool]) -> None:
    source, counts = stream(5), np.zeros(24, dtype=np.int64)
    index = {p: i for i, p in enumerate(sorted({tuple(source.permutation(4)) for _ in range(2000)}))}
    assert len(index) == 24
    for _ in range(10_000):
        counts[index[tuple(source.permutation(4))]] += 1
    assert agrees(counts, np.full(24, 1 / 24))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 300), st.integers(0, 2**32))
def test_a_permutation_is_one(n: int, seed: int) -> None:
    assert sorted(stream(seed).permutation(n).tolist()) == list(range(n))


@pytest.mark.parametrize("size", [0, 1, 5, (), (0, 3), (2, 3)])
@pytest.mark.parametrize("name", [*CONTINUOUS, "integers"])
def test_shapes(name: str, size: int | tuple[int, ...]) -> None:
    arguments = (10, size) if name == "integers" else (size,)
    drawn = getattr(stream(6), name)(*arguments)
    assert drawn.shape == (size if isinstance(size, tuple) else (size,))


def test_forks_are_the_same_each_time_and_independent() -> None:
    parent = stream(7)
    third = parent.fork(3).normal(1000)
    parent.normal(17)
    assert np.array_equal(third, parent.fork(3).normal(1000))
    assert parent.fork(3).name == "noise/3"
    others = [parent.normal(1000), *(parent.fork(i).normal(1000) for i in (0, 1, 2, 4, 33, -3))]
    others += [parent.fork(3).fork(3).normal(1000), parent.fork(33).normal(1000)[::-1]]
    for other in others:
        assert abs(np.corrcoef(third, other)[0, 1]) < 6 / math.sqrt(1000)


def test_every_index_has_a_sub_stream_of_its_own() -> None:
    """A run forks once a batch: no index may come round again, whatever the width of a machine's integers."""
    parent = stream(7)
    powers = [0, 1, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 100]
    indices = {sign * 2**power + more for power in powers for sign in (-1, 1) for more in (-1, 0, 1)}
    assert len({parent.fork(index).bytes(16) for index in indices}) == len(indices)


def test_a_fork_does_not_move_its_parent() -> None:
    parent = stream(8)
    before = parent.state()
    parent.fork(0).bytes(100)
    assert parent.state() == before


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=8), st.lists(st.sampled_from(sorted(DRAWS))))
def test_a_restored_stream_continues_bit_for_bit(before: list[str], after: list[str]) -> None:
    original = stream(9)
    for name in before:
        DRAWS[name](original)
    resumed = stream(10)
    resumed.restore(original.state())
    for name in after:
        assert DRAWS[name](original) == DRAWS[name](resumed)
    assert original.state() == resumed.state()


def test_a_seeded_stream_cannot_become_private() -> None:
    seeded, secure = stream(1), NoiseSource().noise
    seeded.restore(secure.state())
    assert not seeded.is_private
    secure.restore(stream(1).state())
    assert not secure.is_private
    assert "not private" in repr(secure)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(duplicate: Callable[[Stream], object]) -> None:
    with pytest.raises(TypeError, match="same noise"):
        duplicate(stream(1))


def test_the_key_is_not_shown() -> None:
    secure = NoiseSource().noise
    key = str(secure.state()["key"])
    assert key not in repr(secure)
    assert key not in str(secure)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.bytes(-1), "n: must not be negative"),
        (lambda s: s.uniform(-1), "size: must not be negative"),
        (lambda s: s.normal((2, -1)), "size: must not be negative"),
        (lambda s: s.integers(0, 1), "high: must lie in"),
        (lambda s: s.integers(2**63 + 1, 1), "high: must lie in"),
        (lambda s: s.permutation(-1), "n: must not be negative"),
        (lambda s: s.restore({}), "state: "),
        (lambda s: s.restore({"key": "00", "position": 0, "private": True}), "state: "),
        (lambda s: s.restore({"key": "00" * 32, "position": -1, "private": True}), "state: "),
        (lambda s: s.restore({"key": "zz" * 32, "position": 0, "private": True}), "state: "),
        (lambda s: s.restore({"key": "00" * 32, "position": "0", "private": True}), "state: "),
    ],
)
def test_bad_input_is_named(call: Callable[[Stream], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call(stream(1))


def test_sizes_are_whole_numbers() -> None:
    with pytest.raises(TypeError):
        stream(1).uniform(2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("high", [2**62 + 1, 2**63 - 1, 3 * 2**61, 10, 1])
@pytest.mark.parametrize("size", [1, 3, 40])
def test_integers_are_words_of_whole_multiples_only(high, size):
    """Against a slow form on the same words: every word beyond the last whole multiple is drawn again."""
    for seed in range(8):
        words = NoiseSource(seed).noise
        drawn = [int(word) for word in words.uint64(size)]
        limit = 2**64 // high * high
        while wrong := [n for n, word in enumerate(drawn) if word >= limit]:
            for n, word in zip(wrong, words.uint64(len(wrong)), strict=True):
                drawn[n] = int(word)
        assert NoiseSource(seed).noise.integers(high, size).tolist() == [word % high for word in drawn]


def test_a_permutation_with_a_tie_is_drawn_again(monkeypatch):
    """Two equal words have no order of their own: whichever the sort left first would be preferred."""
    stream = NoiseSource(1).noise
    drawn = iter([[5, 3, 5, 1], [2, 2, 2, 2], [7, 1, 9, 4]])
    monkeypatch.setattr(type(stream), "uint64", lambda self, size: np.array(next(drawn), dtype=np.uint64))
    assert stream.permutation(4).tolist() == [1, 3, 0, 2]
    assert next(drawn, None) is None

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream, grid_of
from sparsedp.randomness.torch_normals import normal_, round_to_grid_


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution_and_its_scale(dtype: torch.dtype, uniform_on_unit: Callable[..., bool]) -> None:
    sample = normal_(torch.empty(1_000_000, dtype=dtype), stream(1)).double().numpy()
    assert uniform_on_unit(stats.norm.cdf(sample))
    assert not uniform_on_unit(stats.norm.cdf(sample / 1.01))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    drawn = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        source = stream(2)
        drawn.append((normal_(torch.empty(1_000_003, dtype=dtype), source), source.state()))
    for values, state in drawn[1:]:
        assert torch.equal(values, drawn[0][0])
        assert state == drawn[0][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_stream_continues_bit_for_bit(dtype: torch.dtype) -> None:
    source, resumed = stream(3), stream(4)
    normal_(torch.empty(70_001, dtype=dtype), source)
    resumed.restore(source.state())
    for size in (1, 2, 64, 70_001):
        expected = normal_(torch.empty(size, dtype=dtype), source)
        assert torch.equal(normal_(torch.empty(size, dtype=dtype), resumed), expected)


def test_any_shape_is_filled_in_place_and_returned() -> None:
    for shape in ((0,), (), (3, 5, 7), (1, 64)):
        out = torch.full(shape, math.nan)
        assert normal_(out, stream(5)) is out
        assert torch.isfinite(out).all()
    parameter = torch.nn.Parameter(torch.zeros(10))
    normal_(parameter, stream(5))
    assert parameter.requires_grad
    assert parameter.detach().abs().min() > 0


def test_rows_of_a_matrix_are_filled_where_they_lie() -> None:
    matrix = torch.zeros(4, 8)
    normal_(matrix[1:3], stream(6))
    assert not matrix[0].any()
    assert not matrix[3].any()
    assert matrix[1:3].abs().min() > 0


@pytest.mark.parametrize(
    "out",
    [torch.zeros(4, 4).t()[:2], torch.zeros(4, dtype=torch.float16), torch.zeros(4, device="meta")],
)
def test_tensors_that_cannot_be_filled_are_named(out: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^out: must be"):
        normal_(out, stream(1))


def off_lattice(outputs: torch.Tensor, lattice: float, radius: float) -> float:
    """How often an output lies near zero but off the lattice."""
    steps = outputs.double() / lattice
    return float(((outputs.abs() < radius) & (steps != steps.round())).double().mean())


def test_plain_addition_gives_the_data_away_and_the_grid_does_not() -> None:
    """0 against C in float32: near zero, C + noise reaches only multiples of C 2^-24, plain noise more.

    The event never happens under C, so its probability under 0 is a lower bound on delta at every epsilon.
    """
    clip, noise = 1.0, normal_(torch.empty(200_000), stream(7))
    assert off_lattice(clip + noise, clip * 2.0**-24, clip / 2) == 0.0
    assert off_lattice(0.0 + noise, clip * 2.0**-24, clip / 2) > 0.25
    grid = grid_of(clip)
    for value in (0.0, clip):
        rounded = torch.from_numpy(round_to_grid_((value + noise).numpy(), grid))
        assert off_lattice(rounded, grid, 100.0) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", [2.0**-20, 0.5, 4.0])
def test_rounding_moves_by_half_a_step_at_most(dtype: torch.dtype, grid: float) -> None:
    values = (normal_(torch.empty(10_000, dtype=dtype), stream(8)) * 100).numpy()
    rounded = round_to_grid_(values.copy(), grid)
    assert np.abs(rounded - values).max() <= grid / 2
    assert np.array_equal(np.remainder(rounded.astype(np.float64), grid), np.zeros(10_000))


def test_rounding_works_on_strided_views() -> None:
    values = np.full((4, 4), 0.3)
    round_to_grid_(values[:, 1], 1.0)
    assert values[:, 1].tolist() == [0.0] * 4
    assert values[:, 0].tolist() == pytest.approx([0.3] * 4)


@pytest.mark.parametrize("grid", [0.0, -1.0, 3.0, math.nan, math.inf])
def test_bad_grids_are_named(grid: float) -> None:
    with pytest.raises(ValueError, match=r"^grid: must be a power of two"):
        round_to_grid_(np.zeros(1), grid)

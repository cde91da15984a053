"""Lower bounds as programs: data on which every private mean estimator errs, and by how much at least.

SGO section 4 builds its hard data from two blocks, a packing of sparse vectors (pure DP) and fingerprinting
rows (approximate DP), and repeats a block along the diagonal. Here each construction draws such data and
carries a floor with its constants: *any* mechanism that keeps the stated replace-one guarantee has a root
mean square error, over its own noise and the draw of the data, of at least `floor`. A mechanism measured
below it is not private.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from sparsedp.core.validation import check_count, check_epsilon, check_finite, check_positive
from sparsedp.mechanisms.histogram import distinct_integers
from sparsedp.randomness import Stream


@dataclass(frozen=True)
class BlockDesign:
    """K blocks of `rows` examples on `columns` coordinates each, padded with zeros to n examples."""

    construction: str
    blocks: int
    rows: int
    columns: int
    floor: float


@dataclass(frozen=True)
class HardInstance:
    """Drawn hard data (n x d, rows of norm L, s-sparse) with the design that made it."""

    data: sparse.csr_array
    design: BlockDesign


@dataclass(frozen=True)
class FingerprintingBlock:
    """Rows of signs / sqrt(s); column j has mean `column_means[j]` / sqrt(s), itself drawn from [-1, 1]."""

    data: NDArray[np.float64]
    column_means: NDArray[np.float64]


def hard_mean_instance(
    n: int, d: int, s: int, epsilon: float, delta: float = 0.0, *, l2_bound: float = 1.0, stream: Stream
) -> HardInstance:
    """Data from the hard distribution for (epsilon, delta)-DP mean estimation (Theorems 4.1 and 4.5)."""
    design = hardest_design(n, d, s, epsilon, delta, l2_bound=l2_bound)
    if design.construction == "packing":
        blocks = [packing_block(design.rows, design.columns, s, stream) for _ in range(design.blocks)]
    else:
        blocks = [
            sparse.csr_array(fingerprinting_block(design.rows, s, stream).data) for _ in range(design.blocks)
        ]
    return HardInstance(l2_bound * block_diagonal(blocks, n=n, d=d), design)


def hardest_design(
    n: int, d: int, s: int, epsilon: float, delta: float = 0.0, *, l2_bound: float = 1.0
) -> BlockDesign:
    """The block design with the highest floor: what the proofs choose up to constants, found by search.

    Proof of the floor: given the other blocks, the answer on one block, times n / rows, is a private mean
    of that block, so its mean square error is at least the block's floor^2; squared errors of the K blocks
    add (Lemma 4.3), which gives (rows / n) sqrt(K) times the floor of a block. Zero rows are the padding of
    Lemma A.2.
    """
    n, d, s = check_count("n", n), check_count("d", d), check_count("s", s)
    if 2 * s > d:
        raise ValueError(f"s must be at most d / 2 = {d / 2:g} for the hard instances, got {s}")
    epsilon, scale = check_epsilon(epsilon), check_positive("l2_bound", l2_bound)
    if not 0.0 <= check_finite("delta", delta) < 1.0:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    designs = []
    for name, rows, columns, floor in _candidates(n, d, s, epsilon, float(delta)):
        blocks = min(n // rows, d // columns)
        bound = scale * floor * math.sqrt(blocks) * rows / n
        designs.append(BlockDesign(name, blocks, rows, columns, bound))
    return max(designs, key=lambda design: design.floor)


def log_packing_size(columns: int, s: int) -> float:
    """ln of the size of a packing of s-sparse vectors that a greedy choice is sure to reach (Lemma A.1).

    Proof: each chosen vector rules out those whose support differs in at most floor(s/4) places each way,
    of which there are `sum_i C(s, i) C(columns - s, i)`; the rest stay in play.
    """
    near = np.arange(s // 4 + 1)
    ruled_out = special.logsumexp(_log_binomial(s, near) + _log_binomial(columns - s, near))
    return float(_log_binomial(columns, np.asarray(s)) - ruled_out)


def packing_distance(s: int) -> float:
    """The least distance in the packing: sqrt(2 (floor(s/4) + 1) / s), at least 1/sqrt(2)."""
    return math.sqrt(2 * (s // 4 + 1) / s)


def packing(columns: int, s: int, count: int, stream: Stream) -> sparse.csr_array:
    """`count` vectors in {0, 1/sqrt(s)}^columns, pairwise at least `packing_distance(s)` apart."""
    count, most_shared = check_count("count", count), s - (s // 4 + 1)
    if math.log(count) > log_packing_size(columns, s) + 1e-9:
        raise ValueError(f"count must be at most exp({log_packing_size(columns, s):.3g}), got {count}")
    supports = np.empty((0, s), dtype=np.int64)
    while len(supports) < count:
        proposal = distinct_integers(columns, k=s, stream=stream)
        if np.all(np.isin(supports, proposal).sum(axis=1) <= most_shared):
            supports = np.concatenate([supports, proposal[None]])
    return _indicator_rows(supports, columns)


def packing_floor(rows: int, columns: int, s: int, epsilon: float) -> float:
    """Root mean square error of every epsilon-DP mean on `packing_block` data, at least (Lemma A.3).

    Proof: the balls of half the packing distance are disjoint, and data sets of `rows` copies are `rows`
    changes apart, so `1 >= sum_k P[answer on S_l in ball_k] >= exp(-eps rows) p P[success]`: the answer
    misses its ball with probability at least `1 - exp(eps rows) / p`, and then errs by half the distance or
    more.
    """
    missed = -math.expm1(min(0.0, epsilon * rows - log_packing_size(columns, s)))
    return packing_distance(s) / 2 * math.sqrt(missed)


def packing_block(rows: int, columns: int, s: int, stream: Stream) -> sparse.csr_array:
    """`rows` copies of one random member of a randomly relabelled packing: a uniform s-sparse vector."""
    support = distinct_integers(columns, k=s, stream=stream)
    return _indicator_rows(np.tile(support, (rows, 1)), columns)


def fingerprinting_floor(rows: int, s: int, epsilon: float, delta: float) -> float:
    """Root mean square error of every (epsilon, delta)-DP mean on `fingerprinting_block` data, at least.

    Proof: in units where entries are signs, let a^2 and f^2 be the mean over columns of E(answer - mean)^2
    and E answer^2 (answers outside [-1, 1] only err more). For one column with mean p uniform on [-1, 1],
    integration by parts gives `E[answer sum_i (x_i - p)] = 2 E[p answer] =: A`, hence `a^2 = f^2 - (1 +
    2/n) A + (1 + 2/n)/3`. Privacy bounds A: with row i redrawn, <answer, x_i - p> has mean 0 and second
    moment at most s f^2, so `A <= n (sinh(eps) f / sqrt(s) + 4 delta)`. Minimise over f.
    """
    factor = 1.0 + 2.0 / rows
    remaining = factor * (1.0 / 3.0 - 4.0 * rows * delta)
    return math.sqrt(max(0.0, remaining - ((rows + 2) * math.sinh(epsilon)) ** 2 / (4.0 * s)))


def fingerprinting_block(rows: int, s: int, stream: Stream) -> FingerprintingBlock:
    """`rows` examples of signs over sqrt(s); column j is positive with probability (1 + p_j)/2."""
    means = 2.0 * stream.uniform(s) - 1.0
    signs = np.where(stream.uniform((rows, s)) < (1.0 + means) / 2.0, 1.0, -1.0)
    return FingerprintingBlock(signs / math.sqrt(s), means)


def tracing_scores(
    answer: NDArray[np.float64], rows: NDArray[np.float64], column_means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The attack inside the fingerprinting proof: `<answer, row - p>`, large for rows in the data.

    Rows that took no part score 0 on average, whatever the answer; an accurate answer lifts its members.
    """
    centred = rows - column_means / math.sqrt(len(column_means))
    return np.asarray(centred @ answer, dtype=np.float64)


def block_diagonal(blocks: Sequence[sparse.csr_array], *, n: int, d: int) -> sparse.csr_array:
    """The blocks along the diagonal of an n x d matrix of zeros (Lemma 4.3)."""
    if not blocks:
        raise ValueError("blocks must hold at least one block")
    stacked = sparse.csr_array(sparse.block_diag(blocks, format="csr"))
    rows, columns = stacked.shape
    if rows > n or columns > d:
        raise ValueError(f"blocks must fit into {n} x {d}, got {rows} x {columns}")
    indptr = np.concatenate([stacked.indptr, np.full(n - rows, stacked.indptr[-1], stacked.indptr.dtype)])
    return sparse.csr_array((stacked.data, stacked.indices, indptr), shape=(n, d))


def _candidates(n: int, d: int, s: int, epsilon: float, delta: float) -> list[tuple[str, int, int, float]]:
    """(construction, rows, columns, floor of one block) worth trying."""
    if delta > 0.0:
        most = min(n, max(1, math.ceil(2.0 * math.sqrt(s) / math.sinh(min(epsilon, 700.0)))))
        tried = np.unique(np.geomspace(1, most, num=min(most, 64)).round().astype(int)).tolist()
        return [("fingerprinting", rows, s, fingerprinting_floor(rows, s, epsilon, delta)) for rows in tried]
    floors = []
    widths = 2 * s * 2 ** np.arange(1 + int(math.log2(d / (2 * s))))
    for columns in (*(int(width) for width in widths), d):
        for slack in (0.25, 0.5, 1.0, 2.0, 4.0):
            rows = int(min(n, max(1.0, (log_packing_size(columns, s) - slack) / epsilon)))
            floors.append(("packing", rows, columns, packing_floor(rows, columns, s, epsilon)))
    return floors


def _indicator_rows(supports: NDArray[np.int64], columns: int) -> sparse.csr_array:
    count, s = supports.shape
    values = np.full(supports.size, 1.0 / math.sqrt(s))
    return sparse.csr_array(
        (values, supports.ravel(), np.arange(0, supports.size + 1, s)), shape=(count, columns)
    )


def _log_binomial(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """ln C(n, k), minus infinity where k > n."""
    inside = k <= n
    safe = np.where(inside, k, 0)
    value = special.gammaln(n + 1) - special.gammaln(safe + 1) - special.gammaln(n - safe + 1)
    return np.where(inside, value, -np.inf)

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse
from support.losses import FixedGradients
from support.spies import spy

from sparsedp.accounting import delta_of
from sparsedp.audit.distinguishing import audit, exact_epsilon
from sparsedp.convex.erm.losses import SmoothedHingeLoss
from sparsedp.convex.sgd import partitioned_erm
from sparsedp.convex.sgd.gradient_sums import SAFE
from sparsedp.convex.sgd.partitioned_erm import PartitionedERM, iteration_price
from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.mechanisms import sparse_vector_event
from sparsedp.randomness import NoiseSource, Stream


def _composed(each: float, iterations: int, delta: float) -> float:
    return iterations * each * math.expm1(each) + each * math.sqrt(2 * iterations * math.log(2 / delta))


@pytest.mark.parametrize(
    ("epsilon", "delta", "parts", "iterations"), [(1.0, 1e-6, 20, 100), (0.1, 1e-5, 100, 10)]
)
def test_price_composes_back(epsilon: float, delta: float, parts: int, iterations: int) -> None:
    price = iteration_price(epsilon=epsilon, delta=delta, parts=parts, iterations=iterations)
    assert price.epsilon < 1.0
    sampled = math.log1p(math.expm1(price.epsilon) / parts)
    assert _composed(sampled, iterations, delta) == pytest.approx(epsilon, rel=1e-9)
    assert iterations * price.delta / parts + delta / 2 == pytest.approx(delta)
    # Counting T where T + 1 are run passes the budget.
    fewer = iteration_price(epsilon=epsilon, delta=delta, parts=parts, iterations=iterations - 1)
    assert _composed(math.log1p(math.expm1(fewer.epsilon) / parts), iterations, delta) > epsilon


def test_price_is_at_most_one() -> None:
    price = iteration_price(epsilon=1.0, delta=1e-6, parts=10_000, iterations=100)
    assert price.epsilon == 1.0
    assert _composed(math.log1p(math.expm1(1.0) / 10_000), 100, 1e-6) < 1.0


def test_the_papers_price_breaks_its_promise() -> None:
    """Positive control: eps' = m e and amplification (eps'/m), on randomised response, the worst case of eps'.

    T = 100 and m = 1000 satisfy the theorem's m >= 10 sqrt(T); one single iteration costs more than the whole budget.
    """
    epsilon, delta, parts, iterations = 1.0, 1e-5, 1000, 100
    printed = epsilon * parts / (2 * math.sqrt(2 * iterations * math.log(2 / delta)))
    assert printed > 1.0

    def one_look(eps: float) -> float:
        """The other parts nearly always answer 0, as randomised response on a 0 does; this one's bit is asked."""
        truth = math.exp(eps) / (1 + math.exp(eps))
        low = 1 - truth
        high = truth / parts + (1 - 1 / parts) * (1 - truth)
        return exact_epsilon([high, 1 - high], [low, 1 - low])

    right = iteration_price(epsilon=epsilon, delta=delta, parts=parts, iterations=iterations)
    assert one_look(right.epsilon) <= math.log1p(math.expm1(right.epsilon) / parts) + 1e-12
    assert one_look(printed) > printed / parts
    assert one_look(printed) > epsilon


def test_audit_of_sampling_one_part() -> None:
    """The same by drawing: a part answers with Laplace noise of eps', others are far below it."""
    parts, eps = 10, 4.0
    corrected = math.log1p(math.expm1(eps) / parts)

    def run(value: float, stream: Stream, runs: int) -> np.ndarray:
        chosen = stream.integers(parts, runs) == 0
        return np.where(chosen, value, 0.0) + stream.laplace(runs) / eps

    stream = NoiseSource(1).noise
    found = audit(run, (1.0, 0.0), runs=400_000, delta=0.0, claimed=corrected, stream=stream)
    assert not found.refuted
    literal = audit(run, (1.0, 0.0), runs=400_000, delta=0.0, claimed=eps / parts, stream=stream)
    assert literal.refuted, literal


def test_audit_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record pulls one way or the other, as hard as it may; without enough noise the same audit sees it."""
    delta, claimed = 1e-3, 1.0
    erm = PartitionedERM(linf_bound=1.0, positives=1, iterations=1, step_size=1.0, threshold=0.2)

    def run(pull: float, stream: Stream, runs: int) -> np.ndarray:
        features = np.zeros((4, 2))
        features[0, 0] = pull
        loss = LinearModelLoss(sparse.csr_array(features), np.ones(4), SmoothedHingeLoss(0.01))
        found = np.empty(runs)
        for at in range(runs):
            source = NoiseSource(int(stream.integers(2**62, 1)[0]))
            parts = [[0, 1], [2, 3]]
            result = erm.minimise(loss, np.zeros(2), parts=parts, epsilon=claimed, delta=delta, source=source)
            found[at] = result.x[0]
        return found

    pair, common = (1.0, -1.0), {"runs": 600, "delta": delta, "claimed": claimed}
    assert not audit(run, pair, stream=NoiseSource(7).noise, **common).refuted  # type: ignore[arg-type]
    monkeypatch.setattr(
        partitioned_erm, "iteration_price", lambda **_: partitioned_erm.IterationPrice(1e4, 0.1)
    )
    assert audit(run, pair, stream=NoiseSource(7).noise, **common).refuted  # type: ignore[arg-type]


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, dict[str, float]]]:
    calls: list[tuple[np.ndarray, dict[str, float]]] = []
    original = partitioned_erm.numeric_sparse

    def record(ids, values, size, **scales):  # type: ignore[no-untyped-def]
        dense = np.zeros(size)
        dense[ids] = values
        calls.append((dense, scales))
        return original(ids, values, size, **scales)

    monkeypatch.setattr(partitioned_erm, "numeric_sparse", record)
    return calls


def _loss(size: int, d: int, seed: int) -> LinearModelLoss:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((size, d), density=0.3, rng=rng, format="csr") * 5.0
    return LinearModelLoss(features, rng.choice([-1.0, 1.0], size), SmoothedHingeLoss())


def test_noise_keeps_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the accountant: NumericSparse at these scales is (eps', delta')-DP for a move of 2 c2 m / n."""
    calls = _recorded(monkeypatch)
    size, parts, c2 = 60, 6, 0.4
    for positives, iterations in ((1, 5), (4, 40)):
        erm = PartitionedERM(linf_bound=c2, positives=positives, iterations=iterations, step_size=0.1)
        erm.minimise(
            _loss(size, 20, 2),
            np.zeros(20),
            parts=np.arange(size).reshape(parts, -1),
            epsilon=1.0,
            delta=1e-4,
            source=NoiseSource(3),
        )
        price = iteration_price(epsilon=1.0, delta=1e-4, parts=parts, iterations=iterations)
        scales = calls[-1][1]
        event = sparse_vector_event(
            positives=positives,
            sensitivity=2 * c2 * parts / size,
            **{name: scales[name] for name in ("threshold_scale", "query_scale", "answer_scale")},
        )
        assert delta_of([(event, 1)], price.epsilon) <= price.delta
        assert scales["positives"] == positives


def test_a_replaced_record_moves_entries_by_at_most_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _recorded(monkeypatch)
    size, parts, c2 = 12, 3, 0.5
    erm = PartitionedERM(linf_bound=c2, positives=1, iterations=1, step_size=0.1)
    base = _loss(size, 8, 4)
    for values in ([1e9] * 8, [math.nan] * 8, [-1.0] * 8):
        calls.clear()
        for at in range(size):
            features = base.features.toarray()
            features[at] = values
            other = LinearModelLoss(sparse.csr_array(features), base.targets, base.link)
            for loss in (base, other):
                erm.minimise(
                    loss,
                    np.zeros(8),
                    parts=np.arange(size).reshape(parts, -1),
                    epsilon=1.0,
                    delta=1e-4,
                    source=NoiseSource(5),
                )
        moves = [np.abs(a[0] - b[0]).max() for a, b in zip(calls[::2], calls[1::2], strict=True)]
        assert 0.0 < max(moves) <= 2 * c2 * parts / size + 1e-12


def test_it_descends_when_the_threshold_is_low() -> None:
    """A strong common gradient, a generous budget: the published coordinates point downhill."""
    size, d = 20_000, 50
    features = np.zeros((size, d))
    features[:, 0] = 1.0
    loss = LinearModelLoss(sparse.csr_array(features), np.ones(size), SmoothedHingeLoss(0.1))
    erm = PartitionedERM(linf_bound=1.0, positives=1, iterations=60, step_size=0.05, threshold=0.5)
    result = erm.minimise(
        loss,
        np.zeros(d),
        parts=np.arange(size).reshape(4, -1),
        epsilon=8.0,
        delta=1e-3,
        source=NoiseSource(6),
    )
    assert result.x[0] > 0.3
    assert np.abs(result.x[1:]).max() < 0.5 * result.x[0]
    assert result.statement.adjacency == "replace-one"
    assert "4 parts of 5000 examples" in str(result.statement)


def test_bad_input() -> None:
    erm = PartitionedERM(linf_bound=1.0, positives=1, iterations=2, step_size=0.1)
    loss, common = _loss(12, 8, 0), {"epsilon": 1.0, "delta": 1e-4, "source": NoiseSource(0)}
    for parts, message in (
        ([], "at least one part"),
        ([[0, 1], [2]], "one length"),
        ([np.arange(6), np.arange(6)], "exactly once"),
    ):
        with pytest.raises(ValueError, match=message):
            erm.minimise(loss, np.zeros(8), parts=parts, **common)  # type: ignore[arg-type]
    for field, value in (
        ("linf_bound", 0.0),
        ("positives", 0),
        ("iterations", 0),
        ("step_size", math.nan),
        ("threshold", -1.0),
        ("radius", 0.0),
    ):
        arguments = {"linf_bound": 1.0, "positives": 1, "iterations": 2, "step_size": 0.1, field: value}
        with pytest.raises(ValueError, match=f"{field} must"):
            PartitionedERM(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="parts must be below"):
        iteration_price(epsilon=1.0, delta=0.5, parts=100, iterations=3)
    with pytest.raises(ValueError, match="epsilon must"):
        iteration_price(epsilon=math.nan, delta=0.5, parts=1, iterations=3)


@pytest.mark.parametrize("convex", [True, False])
def test_the_scales_that_are_drawn_are_those_that_were_accounted_for(
    monkeypatch: pytest.MonkeyPatch, convex: bool
) -> None:
    """Every scale, from the statement alone: composition, sampling, then NumericSparse's own theorem 3.28."""
    epsilon, delta, iterations, positives, bound = 0.8, 1e-6, 12, 3, 0.5
    calls = spy(monkeypatch, partitioned_erm, "numeric_sparse")
    rows = np.zeros((20, 6))
    rows[:, 0] = 100.0
    method = PartitionedERM(bound, positives, iterations, step_size=0.1, convex=convex)
    parts = np.arange(20).reshape(4, 5)
    result = method.minimise(
        FixedGradients(sparse.csr_array(rows)),
        np.zeros(6),
        parts=list(parts),
        epsilon=epsilon,
        delta=delta,
        source=NoiseSource(3),
    )
    assert len(calls) == result.steps
    assert result.steps == iterations if convex else result.steps <= iterations
    # The mean gradient of a part, all of whose entries are clipped: one of five examples is worth a fifth of it.
    moved = 2 * max(abs(call["values"]).max() for call in calls) / 5 / SAFE
    slack = math.sqrt(2 * iterations * math.log(2 / delta))
    for call in calls:
        finding, answering = call["threshold_scale"], call["answer_scale"] / 2
        assert call["query_scale"] == pytest.approx(2 * finding, rel=1e-12)
        assert call["positives"] == positives
        # 95 : 5, as WIDE splits it.
        assert finding * 0.95 == pytest.approx(answering * 0.05, rel=1e-9)
        # unit = Delta sqrt(32 c ln(2/delta')) / eps', and delta' = m delta / (2 T).
        share = math.sqrt(32 * positives * math.log(2 / (4 * delta / (2 * iterations))))
        per_look = moved * share / (finding * 0.95)
        each = math.log1p(math.expm1(per_look) / 4)
        assert iterations * each * math.expm1(each) + each * slack == pytest.approx(epsilon, rel=1e-6)
    assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.audit.distinguishing import audit
from sparsedp.mechanisms import batch_clip_sensitivity, gaussian

positive = st.floats(0.05, 5.0)


def clip(vector, norm):
    return vector / max(1.0, np.linalg.norm(vector) / norm)


def clipped_mean(examples, example_clip, batch_clip, batch):
    total = sum((clip(g, example_clip) for g in examples), np.zeros(3))
    return clip(total / batch, batch_clip)


@given(
    st.lists(arrays(np.float64, 3, elements=st.floats(-9, 9)), min_size=2, max_size=5),
    positive,
    positive,
    positive,
)
@settings(deadline=None, max_examples=300)
def test_no_pair_moves_further(examples, example_clip, batch_clip, batch):
    settings_ = {"example_clip": example_clip, "batch_clip": batch_clip, "batch": batch}
    whole = clipped_mean(examples, **settings_)
    removed = clipped_mean(examples[1:], **settings_)
    replaced = clipped_mean([-3.0 * examples[0], *examples[1:]], **settings_)
    assert np.linalg.norm(whole - removed) <= batch_clip_sensitivity(**settings_) * (1 + 1e-9)
    bound = batch_clip_sensitivity(**settings_, adjacency="replace-one")
    assert np.linalg.norm(whole - replaced) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("s1", "s2", "b"), [(15.0, 0.05, 20.0), (1.0, 0.5, 4.0), (1.0, 0.4, 2.0)])
def test_the_bound_is_reached_and_the_printed_one_is_passed(s1, s2, b):
    """One example carries the mean from -x to +(s1/b - x); with x = s2 it crosses the whole ball."""
    x = min(s2, s1 / b / 2)
    rest, one = np.array([-x * b, 0.0, 0.0]), np.array([s1, 0.0, 0.0])
    without, with_one = clip(rest / b, s2), clip((rest + one) / b, s2)
    moved = np.linalg.norm(with_one - without)
    assert moved == pytest.approx(batch_clip_sensitivity(example_clip=s1, batch_clip=s2, batch=b))
    if s1 / b > s2:
        assert moved > min(s1 / b, s2) * 1.05


def test_audit_catches_the_printed_sensitivity_of_wide(stream):
    """S1 = 15, b = 20, S2 = 0.05 as in its Table 1, with noise of sigma * min(S1/b, S2)."""
    s1, s2, b, sigma, delta = 15.0, 0.05, 20.0, 1.0, 1e-2
    claimed = analytic_gaussian_epsilon(delta, 1 / sigma)
    pair = (clip(np.array([-s2 + s1 / b]), s2)[0], -s2)

    def mechanism(std):
        return lambda value, stream, runs: gaussian(np.full(runs, value), std=std, stream=stream)

    right = sigma * batch_clip_sensitivity(example_clip=s1, batch_clip=s2, batch=b)
    printed = sigma * min(s1 / b, s2)
    options = {"runs": 1_000_000, "delta": delta, "claimed": claimed, "stream": stream}
    assert not audit(mechanism(right), pair, **options).refuted
    wrong = audit(mechanism(printed), pair, **options)
    assert wrong.refuted
    assert claimed == pytest.approx(2.3, abs=0.05)
    assert 4.9 <= wrong.lower_bound <= analytic_gaussian_epsilon(delta, 2 / sigma)  # which is what it costs


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"example_clip": 0.0}, "example_clip"),
        ({"batch_clip": np.nan}, "batch_clip"),
        ({"batch": -1.0}, "batch"),
        ({"adjacency": "other"}, "adjacency"),
    ],
)
def test_bad_input(bad, named):
    with pytest.raises(ValueError, match=f"^{named} "):
        batch_clip_sensitivity(**{"example_clip": 1.0, "batch_clip": 1.0, "batch": 1.0} | bad)

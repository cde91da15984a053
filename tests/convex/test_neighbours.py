import pytest

from sparsedp.convex.neighbours import adjacency_notes, changed_terms, check_adjacency, check_pure_or_delta


def test_adjacencies():
    assert changed_terms("replace-one") == 2
    assert changed_terms("add-or-remove-one") == 1
    assert adjacency_notes("replace-one") == ()
    assert "number of examples is public" in adjacency_notes("add-or-remove-one")[0]
    with pytest.raises(ValueError, match="adjacency must be"):
        check_adjacency("swap")


def test_deltas():
    assert check_pure_or_delta(None, 50) == 1 / 500
    assert check_pure_or_delta(0, 50) == 0.0
    assert check_pure_or_delta(1e-3, 50) == 1e-3
    for bad in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="delta must"):
            check_pure_or_delta(bad, 50)

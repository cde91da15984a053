from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from experiments.common.study import Study
from experiments.fest.text import (
    DATA_SETS,
    EPSILONS,
    METHODS,
    cases,
    embedding_share,
    finished,
    keep_layers,
    reductions,
    run,
)
from experiments.fest.text_data import made_up
from sparsedp.models.text_classifier import load_text_classifier


def test_every_method_is_trained_at_every_epsilon_and_seed() -> None:
    each = DATA_SETS[0]
    planned = list(cases(each, quick=False))
    private = set(METHODS) - {"without privacy"}
    for seed in each.seeds:
        for epsilon in EPSILONS:
            named = {case.method for case in planned if (case.seed, case.epsilon) == (seed, epsilon)}
            assert private <= named
    assert len({(c.method, c.label, c.epsilon, c.seed) for c in planned}) == len(planned)


def test_the_best_reduction_is_the_largest_within_the_loss() -> None:
    rows = [
        ("DP-SGD", "", 0.800, 1.0),
        ("LoRA", "rank = 64", 0.799, 6.0),
        ("LoRA", "rank = 16", 0.790, 24.0),
        ("DP-AdaFEST", "f = 5", 0.7955, 500.0),
        ("DP-AdaFEST", "f = 50", 0.780, 600.0),
    ]
    frame = pl.DataFrame(
        [(*row, 1.0) for row in rows],
        schema=["method", "setting", "accuracy", "reduction", "epsilon"],
        orient="row",
    )
    found = {line["method"]: line for line in reductions(frame, sentences=2693).to_dicts()}
    assert [found["LoRA"][f"loss {loss}"] for loss in ("0.001", "0.005", "0.01")] == [6.0, 6.0, 24.0]
    assert [found["DP-AdaFEST"][f"loss {loss}"] for loss in ("0.001", "0.005", "0.01")] == [
        None,
        500.0,
        500.0,
    ]
    assert found["LoRA"]["one standard error (0.0077)"] == 6.0


def test_what_was_finished_is_not_trained_again(tmp_path: Path) -> None:
    study = Study("fest-text", tmp_path)
    assert finished(["a", {"b": 1}], study, lambda: {"accuracy": 0.5}) == {"accuracy": 0.5}
    assert finished(["a", {"b": 1}], study, lambda: pytest.fail("trained again")) == {"accuracy": 0.5}
    assert finished(["a", {"b": 2}], study, lambda: {"accuracy": 0.6}) == {"accuracy": 0.6}


@pytest.mark.slow
def test_the_study_on_made_up_reviews(tmp_path: Path) -> None:
    tables = run(Study("fest-text", tmp_path, quick=True))["tables"]
    lines = next(iter(tables.values()))
    assert {line["method"] for line in lines} >= set(METHODS)


def test_the_embeddings_share_of_the_gradient(tmp_path: Path) -> None:
    texts = made_up(tmp_path)
    shares = []
    for embedding in ("full", "frozen"):
        model = load_text_classifier(tmp_path, embedding=embedding)
        keep_layers(model, 1)
        torch.nn.init.normal_(model.head.weight)
        shares.append(embedding_share(model, texts.held_out, texts=5))
    full, frozen = shares
    assert frozen is None
    assert full is not None
    assert 0.0 < full < 1.0

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.copies import audited, result_of
from support.language import write_model

from sparsedp.models.text_classifier import TextClassifier
from sparsedp.randomness import NoiseSource
from sparsedp.runs import TextConfig
from sparsedp.runs.canary_model import CanaryTextModel
from sparsedp.runs.copy_settings import FILLERS
from sparsedp.runs.text_copy import made_up_texts, text_copy
from sparsedp.selection import FEST

pytest.importorskip("transformers")
pytest.importorskip("peft")
torch.set_num_threads(1)

WORDS = 550
TABLE = "model.encoder.embeddings.word_embeddings"
WHOLE = result_of(training_rows=500, steps=1, planned_steps=1, noise_multiplier=4.0)
"""Of a run with one step on all of its texts: an attacker sees most of what is claimed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "model"
    write_model(folder, vocab_size=WORDS)
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With layers in which canaries have room for directions of their own."""
    folder = tmp_path_factory.mktemp("text") / "wide"
    write_model(folder, vocab_size=WORDS, hidden_size=128)
    return folder


def config(model: Path, algorithm: str = "dp-sgd", **changes: Any) -> TextConfig:
    fields = {
        "data": "nowhere.tsv",
        "model": str(model),
        "algorithm": algorithm,
        "epsilon": 8.0,
        "expected_batch_size": 500,
        "always_on_rows": 16,
        "lora_rank": 2,
    }
    return TextConfig.parse({**fields, **changes})


def test_a_copy_has_the_mechanism_of_the_run_and_few_rows(model: Path) -> None:
    asked = config(model, "adafest", max_grad_norm=0.5, classes="a,b,c", pooling="first")
    copy = text_copy(asked, result_of(threshold=7.5), 30, 100)
    assert (copy.steps, copy.sampling_rate, copy.noise_multiplier, copy.max_grad_norm) == (8, 0.25, 1.5, 0.5)
    assert (copy.view, copy.unit, copy.data.count) == ("every step", "example", 30)
    assert copy.selection(None, None).threshold == 7.5  # type: ignore[operator, arg-type]
    inner = copy.model().model
    assert isinstance(inner, TextClassifier)
    assert inner.get_submodule("encoder.embeddings.word_embeddings").num_embeddings == 60
    assert (inner.head.out_features, inner.pooling) == (3, "first")
    assert set(copy.data.fillers[3].tolist()) == {0, 1, 2}
    assert list(copy.canary_rows) == [TABLE]
    assert text_copy(config(model, "lazy"), WHOLE, 30, 100).view == "final model"
    assert text_copy(config(model, embedding="lora"), WHOLE, 30, 1).canary_rows == {}
    chosen = text_copy(config(model, "random", rows=110), WHOLE, 30, 1).selection(None, None)  # type: ignore[operator, arg-type]
    assert chosen.rows == 12
    with pytest.raises(ValueError, match=r"^audit: every table has fewer than 40 rows"):
        text_copy(asked, WHOLE, 19, 1)


def test_the_run_s_optimisers_and_rates_for_a_smaller_batch(model: Path) -> None:
    rates = {"optimizer": "sgd", "learning_rate": 0.1, "head_learning_rate": 0.5, "table_learning_rate": 2.0}
    share = (36 + FILLERS) / 500
    copy = text_copy(config(model, **rates), WHOLE, 36, 1)
    dense, tables = copy.optimizer(copy.model())  # type: ignore[misc]
    assert [group["lr"] for group in dense.param_groups] == pytest.approx([0.1 * share, 0.5 * share])
    assert tables.param_groups[0]["lr"] == pytest.approx(2.0 * share)
    copy = text_copy(config(model, **{**rates, "optimizer": "adam"}), WHOLE, 36, 1)
    dense, _ = copy.optimizer(copy.model())  # type: ignore[misc]
    assert [group["lr"] for group in dense.param_groups] == [0.1, 0.5]


@pytest.mark.parametrize("pad", [0, 59, None])
def test_canaries_have_tokens_and_directions_of_their_own(pad: int | None) -> None:
    words = torch.nn.Embedding(60, 3, padding_idx=pad)
    own = np.array([row for row in range(60) if row != pad])[-20:]
    data = made_up_texts(words, own, 6, 3, torch.nn.Linear(5, 4))
    ids, mask, types, labels, push_in, push_out = data.canaries
    assert ids[:, 0].tolist() == own.tolist()
    for tokens in (ids[:, 1:], data.fillers[0]):
        assert not set(tokens.flatten().tolist()) & set(own.tolist())
    assert ids.shape == mask.shape == types.shape == (20, 6)
    assert types[0].tolist() == [0, 0, 0, 1, 1, 1]
    every = torch.cat([ids, data.fillers[0]]), torch.cat([mask, data.fillers[1]])
    assert torch.equal(every[0] == pad, every[1] == 0) if pad is not None else bool((every[1] == 1).all())
    assert set(every[1].sum(1).tolist()) == ({6} if pad is None else {3, 6})
    assert set(labels.tolist()) == {0, 1, 2}
    for push, fillers in ((push_in, data.fillers[4]), (push_out, data.fillers[5])):
        assert torch.allclose(push.norm(dim=1), torch.ones(20))
        assert not fillers.any()


@pytest.mark.parametrize("algorithm", ["dp-sgd", "fest"])
def test_pairs_and_batches_without_a_text(model: Path, algorithm: str) -> None:
    """Of 84 texts a step draws one in a hundred: most steps draw none."""
    changes = {"rows": 50} if algorithm == "fest" else {}
    asked = config(model, algorithm, pair_column="other", **changes)
    copy = text_copy(asked, result_of(training_rows=50_000, steps=5), 20, 5)
    built = copy.model()
    assert isinstance(built, CanaryTextModel)
    assert built.has_types
    found = copy.run(NoiseSource(1).noise, 1e-9)
    assert 0.0 < found.statement.epsilon < 5.0


def test_public_frequencies_choose_rows_free_of_charge(model: Path) -> None:
    for source, events in (("ranks", 0), ("private", 1)):
        copy = text_copy(config(model, "fest", rows=275, row_source=source), WHOLE, 30, 1)
        rows = copy.selection(None, None)  # type: ignore[operator, arg-type]
        assert len(rows.one_off_events()) == events
        if isinstance(rows, FEST):
            assert rows.sorted_rows[TABLE].size == 30
            assert 0 < np.isin(copy.canary_rows[TABLE], rows.sorted_rows[TABLE]).sum() < 30


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("dp-sgd", {}),
        ("adafest", {"noise_ratio": 1.0}),
        ("lazy", {}),
        ("dp-sgd", {"embedding": "lora"}),
        ("dp-sgd", {"embedding": "frozen", "lora_rank": 16}),
    ],
)
def test_a_copy_keeps_its_claim_and_a_fiftieth_of_the_noise_is_refuted(
    model: Path, wide: Path, algorithm: str, changes: dict[str, Any]
) -> None:
    """Both audits err with probability 1e-4."""
    encoder = wide if changes.get("embedding") == "frozen" else model
    copy = text_copy(config(encoder, algorithm, **changes), {**WHOLE, "threshold": 0.2}, 1000, 1)
    right, faulty = audited(copy), audited(copy, noise=0.02)
    assert right.canaries == WORDS // 2
    assert right.copy["epsilon"] == pytest.approx(1.396, abs=0.01)
    assert right.refutation is None
    assert faulty.refutation is not None
    assert faulty.lower_bound > 1.2 * right.copy["epsilon"]

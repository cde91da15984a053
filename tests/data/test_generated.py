import gzip

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from sparsedp.data import (
    ClickData,
    ClickProcess,
    GeneratedClicks,
    generate,
    prepare,
    write_criteo_days,
    write_criteo_tsv,
)
from sparsedp.data.criteo import Criteo
from sparsedp.models import PCTR


def test_batches_stream_the_same_rows_in_any_size():
    sizes = [[len(batch) for batch in generate(1000, batch=size)] for size in (1000, 300)]
    assert sizes == [[1000], [300, 300, 300, 100]]
    whole, *rest = (
        [batch.ids for batch in generate(1000, days=3, seed=4, batch=size)] for size in (1000, 300)
    )
    assert np.array_equal(whole[0], np.concatenate(rest[0]))


def test_days_share_the_rows():
    data = GeneratedClicks(1000, days=4)
    assert [len(period.rows) for period in data.periods(1)] == [250] * 4
    assert data.schema.time == "day"
    assert data.schema.vocabulary_sizes == ClickProcess().vocabulary_sizes


@pytest.mark.parametrize(("rows", "days", "said"), [(0, 1, "rows"), (10, 0, "days"), (10, 11, "days")])
def test_there_must_be_rows_and_days(rows, days, said):
    with pytest.raises(ValueError, match=rf"^{said} must"):
        list(generate(rows, days))


def test_a_criteo_file_prepares_to_the_rows_it_was_made_of(criteo_rules, tmp_path):
    files = write_criteo_days(tmp_path, 2000, 3, suffix=".gz")
    schema = prepare(Criteo.of(files), tmp_path / "out", criteo_rules)
    assert (schema.rows, schema.malformed) == (2000, 0)
    prepared, made = ClickData.open(tmp_path / "out"), GeneratedClicks(2000, days=3)
    assert np.array_equal(prepared.label, made.label)
    assert np.array_equal(prepared.time, made.time)
    there, here = (data.take(np.arange(2000)) for data in (prepared, made))
    assert np.array_equal(there.numeric, here.numeric)
    assert np.array_equal(there.ids == 0, here.ids == 0)
    for feature in (0, 5, 16):
        pairs = set(zip(here.ids[:, feature].tolist(), there.ids[:, feature].tolist(), strict=True))
        assert len(pairs) == len(np.unique(here.ids[:, feature])), "one value, one bucket"


def test_the_text_is_exactly_of_the_format(tmp_path):
    write_criteo_tsv(tmp_path / "a.gz", 500)
    lines = gzip.decompress((tmp_path / "a.gz").read_bytes()).decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 500
    fields = np.array([line.split("\t") for line in lines])
    assert fields.shape == (500, 40)
    assert set(fields[:, 0]) == {"0", "1"}
    assert any(value.startswith("-") for value in fields[:, 1:14].ravel())
    assert {len(value) for value in fields[:, 14:].ravel()} == {0, 8}


def test_only_26_features_make_a_criteo_file(tmp_path):
    with pytest.raises(ValueError, match=r"^process must have 26 features"):
        write_criteo_tsv(tmp_path / "x", 10, process=ClickProcess(vocabulary_sizes=(10, 10)))


class Linear(nn.Module):
    """Logistic regression over one-hot ids."""

    def __init__(self, sizes):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(rows, 1, sparse=True) for rows in sizes)
        for table in self.embeddings:
            nn.init.zeros_(table.weight)
        self.layers = nn.Linear(13, 1)

    def forward(self, numeric, ids):
        return self.layers(numeric)[:, 0] + sum(
            table(ids[:, at])[:, 0] for at, table in enumerate(self.embeddings)
        )


def auc_after_an_epoch(model, data, held_out):
    torch.manual_seed(0)
    optimizer = torch.optim.Adagrad(
        [
            {"params": model.embeddings.parameters(), "lr": 0.1},
            {"params": model.layers.parameters(), "lr": 0.01},
        ]
    )
    for features, label in data.loader(512, shuffle=True):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(*features), label).backward()
        optimizer.step()
    features, label = held_out.__getitems__(np.arange(len(held_out)))
    with torch.no_grad():
        return roc_auc_score(label, model(*features))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_embeddings_learn_what_a_linear_model_cannot():
    torch.manual_seed(1)
    data, held_out = GeneratedClicks(64_000).split(1 / 8)
    sizes = data.schema.vocabulary_sizes
    linear = auc_after_an_epoch(Linear(sizes), data, held_out)
    deep = auc_after_an_epoch(PCTR(sizes, hidden=(128, 128)), data, held_out)
    assert linear > 0.58
    assert deep > linear + 0.04

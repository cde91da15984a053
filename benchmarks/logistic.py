"""Private logistic regression on real sparse data: accuracy at epsilon 0.5, 1 and 4, beside two peers.

    python benchmarks/logistic.py [--json] [--seeds 3] [--data DIR] [--dataset adult farm-ads newsgroups20]
                                  [--diffprivlib-python PATH]

The data sets are those of docs/data-sets.md, in the folder given or in that of SPARSEDP_DATA.

Same features, split and epsilon for all. Features are made from one row at a time (hashing, square roots of
counts, unit length): nothing of them is learnt from data. The peers:

- this library's DP-SGD, by its `PrivacyEngine`: add-or-remove-one, delta = 1/(10 n), Poisson batches of n/8. Its
  learning rate and epochs are the best of a grid on a fifth of the training rows, which costs privacy that its
  epsilon does not contain: an advantage over ours, which has its defaults throughout;
- diffprivlib: replace-one, pure DP. It needs an older scikit-learn, so it runs in its own interpreter where one is
  given, and it densifies its rows. Ours beside it: "auto, pure, replace-one".
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from scipy import sparse
from sklearn.datasets import load_svmlight_file
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from timing import show
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sparsedp import PrivacyEngine
from sparsedp.cli.data_sets import find_data_set
from sparsedp.convex import CompositionWarning, PrivateLogisticRegression

FILES = {
    "adult": ("a9a.zst", "a9a.t.zst"),
    "farm-ads": ("X_raw.npz", "y_raw.npy"),
    "newsgroups20": ("train.tab.zst", "test.tab.zst"),
}
"""The files of each data set."""
EPSILONS = (0.5, 1.0, 4.0)
TEXT_FEATURES = 2**16
CONSTANT = 0.25
"""The value of the constant feature that makes an intercept, for DP-SGD as for ours."""
BATCHES_PER_EPOCH = 8
GRID = list(itertools.product((2.0, 8.0, 32.0), (4, 12, 36)))
"""DP-SGD's learning rates and epochs to choose from."""


@dataclass(frozen=True)
class Split:
    """Training and test rows, and a public guess of the non-zeros of a row."""

    rows: sparse.csr_matrix
    labels: np.ndarray
    test_rows: sparse.csr_matrix
    test_labels: np.ndarray
    sparsity: int

    @property
    def classes(self) -> np.ndarray:
        """All labels of the data set: its description names them."""
        return np.unique(np.concatenate([self.labels, self.test_labels]))


def adult(folder: Path) -> Split:
    parts = [
        load_svmlight_file(io.BytesIO(unpacked(folder / name)), n_features=123) for name in FILES["adult"]
    ]
    (rows, labels), (test_rows, test_labels) = [(normalize(x), (y > 0).astype(int)) for x, y in parts]
    return Split(rows, labels, test_rows, test_labels, 14)


def farm_ads(folder: Path) -> Split:
    rows_file, labels_file = FILES["farm-ads"]
    rows = normalize(sparse.load_npz(folder / rows_file).tocsr().astype(float))
    labels = np.load(folder / labels_file)
    order = np.random.default_rng(0).permutation(labels.size)
    train, test = np.split(order, [int(0.8 * labels.size)])
    return Split(rows[train], labels[train], rows[test], labels[test], 200)


def newsgroups20(folder: Path) -> Split:
    vectorizer = HashingVectorizer(
        n_features=TEXT_FEATURES, norm=None, alternate_sign=False, stop_words="english"
    )
    parts = []
    for name in FILES["newsgroups20"]:
        lines = unpacked(folder / name).decode().split("\n")[3:]
        labels, texts = zip(*(line.split("\t", 1) for line in lines if "\t" in line), strict=True)
        counts = vectorizer.transform(texts)
        counts.data = np.sqrt(counts.data)
        parts.append((normalize(counts), np.array(labels)))
    (rows, labels), (test_rows, test_labels) = parts
    return Split(rows, labels, test_rows, test_labels, 100)


DATASETS: dict[str, Callable[[Path], Split]] = {
    "adult": adult,
    "farm-ads": farm_ads,
    "newsgroups20": newsgroups20,
}
OURS: dict[str, dict[str, Any]] = {
    "auto, add-or-remove-one": {"adjacency": "add-or-remove-one"},
    "auto, replace-one": {},
    "objective, replace-one": {"mechanism": "objective"},
    "output (Algorithm 3), replace-one": {"mechanism": "output"},
    "auto, pure, replace-one": {"delta": 0},
}

PEER = """
import json, sys, time, warnings
import numpy as np
from scipy import sparse
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
folder, epsilons, seeds, iterations = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rows, test_rows = (sparse.load_npz(f"{folder}/{name}.npz") for name in ("rows", "test_rows"))
labels, test_labels = (np.load(f"{folder}/{name}.npy") for name in ("labels", "test_labels"))
for epsilon in epsilons:
    for seed in range(seeds):
        start = time.perf_counter()
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, max_iter=iterations, random_state=seed)
        model.fit(rows.toarray(), labels)
        accuracy = float(np.mean(model.predict(test_rows.toarray()) == test_labels))
        print(json.dumps([epsilon, accuracy, time.perf_counter() - start]), flush=True)
"""


def unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def ours(
    split: Split, epsilon: float, seeds: int, parameters: dict[str, Any]
) -> Iterator[tuple[float, float]]:
    for _ in range(seeds):
        start = time.perf_counter()
        model = PrivateLogisticRegression(
            epsilon, classes=split.classes, sparsity=split.sparsity, **parameters
        )
        model.fit(split.rows, split.labels)
        yield model.score(split.test_rows, split.test_labels), time.perf_counter() - start


class SparseRows(Dataset[int]):
    """Rows and labels by their number; `collate` makes bags of a batch of numbers."""

    def __init__(self, rows: sparse.csr_matrix, labels: np.ndarray) -> None:
        constant = sparse.csr_matrix(np.full((rows.shape[0], 1), CONSTANT))
        self.rows = sparse.hstack([rows, constant], format="csr", dtype=np.float32)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> int:
        return number

    def collate(self, numbers: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch = self.rows[numbers]
        ids, starts = (torch.from_numpy(each.astype(np.int64)) for each in (batch.indices, batch.indptr[:-1]))
        return ids, starts, torch.from_numpy(batch.data), torch.from_numpy(self.labels[numbers])


def dp_sgd(
    data: SparseRows, test: SparseRows, epsilon: float, rate: float, epochs: int
) -> tuple[float, float]:
    """Accuracy on `test`, and seconds, of logistic regression trained by DP-SGD on `data`."""
    start = time.perf_counter()
    classes = int(data.labels.max()) + 1
    outputs = 1 if classes == 2 else classes
    model = nn.EmbeddingBag(data.rows.shape[1], outputs, mode="sum", sparse=True)
    nn.init.zeros_(model.weight)
    engine = PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        data_loader=DataLoader(
            data, batch_size=math.ceil(len(data) / BATCHES_PER_EPOCH), collate_fn=data.collate
        ),
        target_epsilon=epsilon,
        target_delta=1 / (10 * len(data)),
        epochs=epochs,
        max_grad_norm=0.5 if classes == 2 else 1.0,
    )
    for _ in range(epochs):
        for ids, starts, values, labels in private.data_loader:
            private.optimizer.zero_grad()
            margins = private.module(ids, starts, per_sample_weights=values)
            loss = (
                nn.functional.binary_cross_entropy_with_logits(margins[:, 0], labels.float())
                if outputs == 1
                else nn.functional.cross_entropy(margins, labels)
            )
            loss.backward()
            private.optimizer.step()
    scores = test.rows @ model.weight.detach().numpy()
    chosen = (scores[:, 0] > 0).astype(int) if outputs == 1 else scores.argmax(axis=1)
    return float(np.mean(chosen == test.labels)), time.perf_counter() - start


def tuned_dp_sgd(split: Split, epsilon: float, seeds: int) -> tuple[str, list[tuple[float, float]]]:
    """The setting with the best accuracy on a fifth of the training rows, and its runs on all of them."""
    labels, test_labels = (
        np.unique(each, return_inverse=True)[1] for each in (split.labels, split.test_labels)
    )
    order = np.random.default_rng(1).permutation(labels.size)
    kept, validation = (
        SparseRows(split.rows[part], labels[part]) for part in np.split(order, [int(0.8 * labels.size)])
    )
    rate, epochs = max(GRID, key=lambda setting: dp_sgd(kept, validation, epsilon, *setting)[0])
    whole, test = SparseRows(split.rows, labels), SparseRows(split.test_rows, test_labels)
    runs = [dp_sgd(whole, test, epsilon, rate, epochs) for _ in range(seeds)]
    return f"DP-SGD, tuned (rate {rate:g}, {epochs} epochs), add-or-remove-one", runs


def diffprivlib(split: Split, python: str, seeds: int) -> dict[float, list[tuple[float, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in (("rows", split.rows), ("test_rows", split.test_rows)):
            sparse.save_npz(f"{folder}/{name}.npz", sparse.csr_matrix(matrix))
        np.save(f"{folder}/labels.npy", np.unique(split.labels, return_inverse=True)[1])
        np.save(f"{folder}/test_labels.npy", np.unique(split.test_labels, return_inverse=True)[1])
        # It densifies: on wide rows a few iterations take minutes, and its noise, of norm d / epsilon, decides.
        wide = split.rows.shape[1] > 10_000
        command = [
            python,
            "-c",
            PEER,
            folder,
            json.dumps(EPSILONS),
            *map(str, (1, 10) if wide else (seeds, 100)),
        ]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[float, list[tuple[float, float]]] = {epsilon: [] for epsilon in EPSILONS}
    for epsilon, accuracy, seconds in map(json.loads, lines):
        found[epsilon].append((accuracy, seconds))
    return found


def row(name: str, epsilon: float | str, method: str, runs: list[tuple[float, float]]) -> dict[str, Any]:
    accuracies, seconds = np.array(runs).T
    print(f"{name}, epsilon {epsilon}, {method}: {accuracies.mean():.4f}", file=sys.stderr, flush=True)
    return {
        "data": name,
        "epsilon": epsilon,
        "method": method,
        "accuracy": float(accuracies.mean()),
        "spread": float(accuracies.std()),
        "seconds": float(np.median(seconds)),
    }


def run(folders: dict[str, Path], seeds: int, python: str | None) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore", CompositionWarning)
    results = []
    for name, folder in folders.items():
        split = DATASETS[name](folder)
        if python is not None and name != "newsgroups20":  # dense 11,293 x 65,536 rows would be 6 GB there
            for epsilon, runs in diffprivlib(split, python, seeds).items():
                results.append(row(name, epsilon, "diffprivlib, pure, replace-one", runs))
        for epsilon in EPSILONS:
            results.append(row(name, epsilon, *tuned_dp_sgd(split, epsilon, seeds)))
            for method, parameters in OURS.items():
                results.append(row(name, epsilon, method, list(ours(split, epsilon, seeds, parameters))))
        start = time.perf_counter()
        free = LogisticRegression(C=100.0, max_iter=300).fit(split.rows, split.labels)
        score = free.score(split.test_rows, split.test_labels)
        results.append(row(name, "none", "scikit-learn, not private", [(score, time.perf_counter() - start)]))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--diffprivlib-python")
    arguments = parser.parse_args()
    folders = {name: find_data_set(name, FILES[name], arguments.data) for name in arguments.dataset}
    show("logistic", run(folders, arguments.seeds, arguments.diffprivlib_python))


if __name__ == "__main__":
    main()

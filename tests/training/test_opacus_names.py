"""Scripts in the manner of Opacus's tutorials run with the import changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sparsedp import PrivacyEngine  # in place of: from opacus import PrivacyEngine


def test_an_image_classifier() -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    labels = torch.arange(48) % 10
    images = torch.randn(48, 1, 28, 28) + labels[:, None, None, None]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    engine = PrivacyEngine(secure_mode=False)
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0
    )
    model.train()
    criterion, losses = nn.CrossEntropyLoss(), []
    for data, target in loader:
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses
    epsilon = engine.accountant.get_epsilon(delta=1e-5)
    assert epsilon == engine.get_epsilon(1e-5) == engine.epsilon(1e-5)
    assert 0 < epsilon < 20


class CharacterModel(nn.Module):
    """Names, letter by letter, to the language they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.out = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.out(states[:, -1])


def test_a_character_lstm() -> None:
    torch.manual_seed(0)
    model: nn.Module = CharacterModel()
    names, languages = torch.randint(0, 64, (40, 12)), torch.arange(40) % 5
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(TensorDataset(names, languages), batch_size=10)
    engine = PrivacyEngine(accountant="prv")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=3.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.5,
        batch_first=True,
    )
    print(f"Using sigma={optimizer.noise_multiplier} and C={optimizer.max_grad_norm}")  # as the tutorials do
    assert (optimizer.max_grad_norm, optimizer.expected_batch_size) == (1.5, 10.0)
    assert 0.1 < optimizer.noise_multiplier < 10
    steps = 0
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
    assert steps == 8
    assert engine.get_epsilon(delta=1e-3) <= 3.0


class SentimentModel(nn.Module):
    """Mean of word embeddings, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 16)
        self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(self.embedding(words).mean(1))))


@pytest.mark.parametrize("poisson_sampling", [True, False])
@pytest.mark.parametrize("grad_sample_mode", ["hooks", "ew", "functorch"])
def test_an_embedding_classifier(poisson_sampling: bool, grad_sample_mode: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = SentimentModel()
    words, labels = torch.randint(0, 500, (64, 20)), torch.arange(64) % 2
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = DataLoader(TensorDataset(words, labels), batch_size=16)
    engine = PrivacyEngine(secure_mode=True)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=0.56,
        max_grad_norm=1.0,
        poisson_sampling=poisson_sampling,
        grad_sample_mode=grad_sample_mode,
        clipping="flat",
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert engine.get_epsilon(1e-5) > 0
    adjacency = engine.statement(1e-5).adjacency
    assert adjacency == ("add-or-remove-one" if poisson_sampling else "zero-out")


def test_what_means_something_else_is_refused() -> None:
    model = SentimentModel()
    arguments = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": DataLoader(TensorDataset(torch.zeros(8, 2, dtype=torch.int64)), batch_size=4),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    with pytest.raises(ValueError, match="dimension 0"):
        PrivacyEngine().make_private(**arguments, batch_first=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clipped as a whole"):
        PrivacyEngine().make_private(**arguments, clipping="per_layer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="poisson and poisson_sampling"):
        PrivacyEngine().make_private(**arguments, poisson=True, poisson_sampling=True)  # type: ignore[arg-type]
    for mode in ("ghost", "ghost_fsdp", "no_op"):
        with pytest.raises(ValueError, match=f"^grad_sample_mode='{mode}': leave it out.* use your own"):
            PrivacyEngine().make_private(
                **arguments,  # type: ignore[arg-type]
                grad_sample_mode=mode,
                criterion=nn.CrossEntropyLoss(),
            )
    with pytest.raises(ValueError, match="secure_mode=True and seed"):
        PrivacyEngine(secure_mode=True, seed=3)
    with pytest.raises(ValueError, match="accountant must be 'pld'"):
        PrivacyEngine(accountant="rdp")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        PrivacyEngine().make_private(**arguments, no_such_argument=1)  # type: ignore[arg-type]

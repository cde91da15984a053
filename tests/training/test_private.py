from __future__ import annotations

import torch
from support.models import TwoTables
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import PoissonLoader, Private, PrivateOptimizer


def test_it_unpacks_in_the_order_users_of_opacus_know() -> None:
    model = TwoTables()
    data = TensorDataset(torch.zeros(50, 2).long(), torch.zeros(50))
    private = sdp.PrivacyEngine(seed=1, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    assert isinstance(private, Private)
    module, optimizer, loader = private
    assert module is private.module is model
    assert isinstance(optimizer, PrivateOptimizer)
    assert isinstance(loader, PoissonLoader)
    assert (private.optimizer, private.data_loader) == (optimizer, loader)

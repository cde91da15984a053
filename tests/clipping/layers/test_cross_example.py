from __future__ import annotations

import pytest
from torch import nn

from sparsedp.clipping import Capture, UnsupportedLayerError


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.BatchNorm1d(4, affine=False),
        nn.LazyBatchNorm1d(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_batch_norm_is_refused_with_advice(layer):
    model = nn.ModuleDict({"linear": nn.Linear(3, 4), "norm": layer})
    with pytest.raises(UnsupportedLayerError, match=r"module 'norm' \(.*BatchNorm.*GroupNorm or LayerNorm"):
        Capture(model, loss_reduction="mean")


def test_running_statistics_are_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.InstanceNorm1d(4, track_running_stats=True))
    with pytest.raises(UnsupportedLayerError, match="track_running_stats=False"):
        Capture(model, loss_reduction="mean")

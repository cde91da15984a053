import pytest
import torch
from torch import nn

from sparsedp.models import DLRM, PCTR
from sparsedp.models.layers import EMBEDDING_STD, OUTPUT_STD, check_sizes, embedding, embedding_bag, mlp


def test_tables_are_sparse_and_small():
    torch.manual_seed(0)
    for table in (embedding(2000, 8), embedding_bag(2000, 8)):
        assert table.sparse
        assert table.weight.std().item() == pytest.approx(EMBEDDING_STD, rel=0.1)
    assert embedding_bag(5, 2).mode == "sum"
    assert embedding(2000, 8, std=0.5).weight.std().item() == pytest.approx(0.5, rel=0.1)


def test_an_output_layer_is_linear_and_quiet():
    torch.manual_seed(0)
    inner, output = mlp([400, 300], last_relu=True), mlp([400, 300, 200], last_relu=False)
    assert isinstance(inner[-1], nn.ReLU)
    assert isinstance(output[-1], nn.Linear)
    assert output[-1].weight.std().item() == pytest.approx(OUTPUT_STD, rel=0.1)
    assert inner[0].weight.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.1)
    assert inner[0].bias.abs().max() == 0


@pytest.mark.parametrize("sizes", [[0], [-1], [2.5], ["a"]])
def test_sizes_are_positive_integers(sizes):
    with pytest.raises(ValueError, match=r"^widths must be positive integers"):
        check_sizes("widths", sizes)


@pytest.mark.parametrize("model", [PCTR, DLRM])
def test_the_spread_of_the_rows_is_not_negative(model: type[PCTR] | type[DLRM]) -> None:
    with pytest.raises(ValueError, match="embedding_std must not be negative, got -1"):
        model([10], 1, embedding_std=-1.0)

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError

B, T, S, E = 4, 5, 6, 8


class Attend(nn.Module):
    """Attention with the masks and options of a test."""

    def __init__(self, layer: nn.MultiheadAttention, **options: object) -> None:
        super().__init__()
        self.layer = layer
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> object:
        if "per_head_mask" in self.options:
            mask = torch.linspace(-1, 1, T * S).view(1, T, S).repeat(query.shape[0] * 2, 1, 1)
            return self.layer(query, key, value, attn_mask=mask)
        return self.layer(query, key, value, key_padding_mask=padding, **self.options)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention(check, need_weights, bias):
    layer = nn.MultiheadAttention(E, 2, batch_first=True, bias=bias)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> object:
            return self.layer(x, x, x, need_weights=need_weights, average_attn_weights=False)

    capture = check(Self(), torch.randn(B, T, E))
    assert "layer.out_proj.weight" in capture.dense


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(2)},
        {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(1), "need_weights": False, "is_causal": True},
        {"per_head_mask": True},
    ],
)
def test_cross_attention(check, options):
    model = Attend(nn.MultiheadAttention(E, 2, batch_first=True), **options)
    check(model, torch.randn(B, T, E), torch.randn(B, S, E), torch.randn(B, S, E))


def test_keys_that_are_values_and_padding(check):
    class Decode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(E, 2, batch_first=True)

        def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> object:
            return self.layer(x, memory, memory, key_padding_mask=padding)[0]

    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[:, 4:] = True
    check(Decode(), torch.randn(B, T, E), torch.randn(B, S, E), padding)


def test_separate_sizes(check):
    model = Attend(nn.MultiheadAttention(E, 2, kdim=3, vdim=4, batch_first=True))
    check(model, torch.randn(B, T, E), torch.randn(B, S, 3), torch.randn(B, S, 4))


def test_transformer_layers(check):
    encoder = nn.TransformerEncoderLayer(E, 2, 16, dropout=0.0, batch_first=True)
    check(encoder, torch.randn(B, T, E), tolerance=3e-5)
    decoder = nn.TransformerDecoderLayer(E, 2, 16, dropout=0.0, batch_first=True)
    check(decoder, torch.randn(B, T, E), torch.randn(B, S, E), tolerance=3e-5)


def test_dropout_is_the_layers_own():
    torch.manual_seed(3)
    layer = nn.MultiheadAttention(E, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1000, T, E)
    capture = Capture(layer, loss_reduction="sum")
    out, weights = layer(x, x, x)
    dropped = layer(x, x, x, average_attn_weights=False)[1] == 0
    # 50,000 fair coins: seven standard deviations are 0.016 (error rate below 1e-11).
    assert abs(dropped.float().mean() - 0.5) < 0.016
    out.sum().backward()
    assert set(capture.take()[0].dense) == set(capture.dense)
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    assert weights is not None


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_layer_that_does_not_train_drops_nothing_in_a_model_that_does(need_weights):
    model = nn.ModuleList([nn.MultiheadAttention(E, 2, dropout=0.5, batch_first=True)])
    Capture(model, loss_reduction="sum")
    model[0].eval()
    x = torch.randn(20, T, E)
    first, second = (model[0](x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_refused():
    with pytest.raises(UnsupportedLayerError, match=r"'0' \(MultiheadAttention\): .*batch_first=True"):
        Capture(nn.Sequential(nn.MultiheadAttention(E, 2)), loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="add_bias_kv"):
        Capture(nn.MultiheadAttention(E, 2, batch_first=True, add_bias_kv=True), loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="add_zero_attn"):
        Capture(nn.MultiheadAttention(E, 2, batch_first=True, add_zero_attn=True), loss_reduction="mean")
    layer = nn.MultiheadAttention(E, 2, batch_first=True)
    Capture(layer, loss_reduction="mean")
    one = torch.randn(T, E)
    with pytest.raises(UnsupportedLayerError, match="query: must be"):
        layer(one, one, one)
    with pytest.raises(UnsupportedLayerError, match="attn_mask"):
        layer(one[None], one[None], one[None], is_causal=True)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask", [None, "causal", "added", "per head"])
def test_any_two_masks_together(check, mask, padded, need_weights):
    """Masks by position, by head and by padding, each different for every example, add up as torch adds them."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(E, 2, batch_first=True)

        def forward(self, x: Tensor, key: Tensor) -> Tensor:
            given = None
            if mask == "causal":
                given = torch.ones(T, S, dtype=torch.bool).triu(1)
            elif mask == "added":
                given = torch.linspace(-1, 1, T * S).view(T, S)
            elif mask == "per head":  # (examples x heads, T, S), examples outermost
                heads = torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)
                given = (x[:, None, :, :1] * heads * torch.linspace(-1, 1, S)).flatten(0, 1).detach()
            hidden = None
            if padded:
                hidden = torch.zeros(x.shape[0], S, dtype=torch.bool)
                hidden[:, 1:] = key.detach()[:, 1:, 0] > 0.3
                hidden = hidden if mask in (None, "causal") else hidden.float() * -3.0
            return self.layer(
                x, key, key, key_padding_mask=hidden, attn_mask=given, need_weights=need_weights
            )[0]

    check(Masked(), torch.randn(B, T, E), torch.randn(B, S, E), tolerance=3e-5)

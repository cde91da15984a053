"""The textbook step, one example at a time: what the fast step must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sparsedp.training.batch import clip_share


def per_example_gradients(
    model: nn.Module, loss: Callable[[nn.Module, int], Tensor], examples: int
) -> list[dict[str, Tensor]]:
    """Autograd, one example at a time; ``loss(model, i)`` is example i's loss."""
    names, parameters = zip(*[(n, p) for n, p in model.named_parameters() if p.requires_grad], strict=True)
    gradients = []
    for i in range(examples):
        found = torch.autograd.grad(loss(model, i), parameters, allow_unused=True)
        gradients.append(
            {
                name: torch.zeros_like(p) if g is None else (g.to_dense() if g.is_sparse else g)
                for name, p, g in zip(names, parameters, found, strict=True)
            }
        )
    return gradients


def masked_clipped_mean(
    gradients: list[dict[str, Tensor]], masks: Mapping[str, Tensor], clip: float, batch: float
) -> dict[str, Tensor]:
    """Mask, clip jointly over all parameters, sum, divide by the constant ``batch``."""
    total: dict[str, Tensor] = {}
    for gradient in gradients:
        masked = {
            name: g * masks[name].reshape(masks[name].shape + (1,) * (g.dim() - masks[name].dim()))
            if name in masks
            else g
            for name, g in gradient.items()
        }
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in masked.values()))  # type: ignore[call-overload]
        if not torch.isfinite(norm):
            continue
        factor = min(1.0, clip * clip_share(batch) / max(float(norm), 1e-300))
        for name, g in masked.items():
            total[name] = total.get(name, torch.zeros_like(g)) + factor * g / batch
    return total

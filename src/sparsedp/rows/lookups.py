"""Which rows of a table the examples of a batch read, and the gradient of each lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsedp.rows.units import Units


@dataclass(frozen=True)
class EmbeddingLookups:
    """The lookups of one table by one batch, flat: lookup number n is ``ids[n]``, read by ``examples[n]``.

    The gradient of lookup n is ``scales[n] * output_grads[sources[n]]``. A plain embedding has ``sources = None``
    (lookup n has gradient ``output_grads[n]``) and no scales; in a bag all lookups share their bag's gradient, and
    the scales are the mean's or the per-sample weights. Lookups without a gradient (padding) are left out.
    """

    ids: Tensor
    """int64, one per lookup."""
    examples: Tensor
    """int64, which example (dimension 0 of the batch) reads; ascending."""
    output_grads: Tensor
    """One row per lookup, or per bag where ``sources`` is given."""
    sources: Tensor | None = None
    scales: Tensor | None = None

    def __len__(self) -> int:
        return int(self.ids.numel())

    @staticmethod
    def concatenate(calls: Sequence[EmbeddingLookups]) -> EmbeddingLookups:
        """All lookups of several calls of a layer (or of layers that share a table), sorted by example."""
        if len(calls) == 1:
            return calls[0]
        sources, base = [], 0
        for call in calls:
            call_sources = (
                call.sources if call.sources is not None else torch.arange(len(call), device=call.ids.device)
            )
            sources.append(call_sources + base)
            base += call.output_grads.shape[0]
        scales = None
        if any(call.scales is not None for call in calls):
            scales = torch.cat(
                [
                    call.scales if call.scales is not None else call.output_grads.new_ones(len(call))
                    for call in calls
                ]
            )
        examples, order = torch.sort(torch.cat([call.examples for call in calls]), stable=True)
        return EmbeddingLookups(
            ids=torch.cat([call.ids for call in calls])[order],
            examples=examples,
            output_grads=torch.cat([call.output_grads for call in calls]),
            sources=torch.cat(sources)[order],
            scales=None if scales is None else scales[order],
        )

    def after(self, examples: int) -> EmbeddingLookups:
        """The same lookups with example numbers shifted by ``examples``."""
        return replace(self, examples=self.examples + examples) if examples else self

    def grouped(self, units: Units) -> EmbeddingLookups:
        """The same lookups, read by units instead of examples."""
        unit = torch.from_numpy(units.of_example).to(self.examples.device)
        return replace(self, examples=unit[self.examples])

    def of_examples(self, mask: Tensor) -> EmbeddingLookups:
        """Only the lookups of the examples in ``mask`` (bool, one per example)."""
        chosen = mask[self.examples].nonzero().flatten()
        return replace(
            self,
            ids=self.ids[chosen],
            examples=self.examples[chosen],
            sources=chosen if self.sources is None else self.sources[chosen],
            scales=None if self.scales is None else self.scales[chosen],
        )

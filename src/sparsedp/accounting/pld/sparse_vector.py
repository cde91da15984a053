"""The sparse vector technique, as the pairs it is dominated by."""

from __future__ import annotations

import math

from sparsedp.accounting.events import SparseVectorDpEvent
from sparsedp.accounting.pld.bounded_range import laplace
from sparsedp.accounting.pld.pairs import Pair, randomized_response


def sparse_vector_pairs(event: SparseVectorDpEvent) -> list[tuple[Pair, int]]:
    """One randomised response for each round up to a positive, one Laplace for each published answer.

    Guarantee and proof: see `SparseVectorDpEvent`. No smaller pair covers all inputs: on queries of which
    one outcome decides, a round's loss comes arbitrarily close to +-`round_epsilon`.
    """
    pairs: list[tuple[Pair, int]] = [(randomized_response(event.round_epsilon), event.positives)]
    if math.isfinite(event.answer_scale):
        pairs.append((laplace(1 / event.answer_scale), event.positives))
    return pairs

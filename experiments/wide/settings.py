"""The algorithms of WIDE's Figure 1, each with the best clip and learning rate of ``wide-tuning``.

They were chosen by the loss on the validation part, which is taken to be public.
"""

from __future__ import annotations

import math
from dataclasses import replace

import sparsedp as sdp
from experiments.wide.brown_examples import BrownExamples
from experiments.wide.word_vectors import MakeSelection, Setting
from sparsedp.models.cbow import DIM
from sparsedp.selection import Selection

SHARE = 0.025
"""Of all coordinates, that the coordinate-wise rules choose at a step (gamma); the paper's is 0.001, at many more steps."""
CLIP = 0.05
"""Of the coordinate-wise rules: what is left of a gradient is short."""
SCORE_CAP = 0.1
"""S0, the paper's; one example moves a score by clip / batch, which is far less."""
_DRAW_EPSILON, _ROUND_EPSILON = 0.02, 0.01


def coordinates(examples: BrownExamples, share: float = SHARE) -> int:
    """How many coordinates a step chooses."""
    return round(share * 2 * examples.size * DIM)


def _exponential(examples: BrownExamples, _: Setting) -> Selection:
    return sdp.ExponentialSelection(
        rows=None,
        coordinates=coordinates(examples),
        selection_epsilon=_DRAW_EPSILON,
        score_cap=SCORE_CAP,
        always_on_rows=0,
    )


def _sparse_vector(examples: BrownExamples, setting: Setting) -> Selection:
    """The threshold lets about as many pass by noise alone as are asked for, so that the search sees all coordinates."""
    query_scale = 4 * (setting.max_grad_norm / setting.batch) / _ROUND_EPSILON
    return sdp.SparseVectorSelection(
        rows=None,
        coordinates=coordinates(examples),
        selection_epsilon=_ROUND_EPSILON,
        score_cap=SCORE_CAP,
        threshold=query_scale * math.log(0.6 / SHARE),
        always_on_rows=0,
    )


def _random(batch_clip: float | None = None, share: float = SHARE) -> MakeSelection:
    return lambda examples, _: sdp.RandomSelection(
        coordinates=coordinates(examples, share), batch_clip=batch_clip, always_on_rows=0
    )


def _adafest(noise_ratio: float, false_positives: float) -> MakeSelection:
    return lambda *_: sdp.AdaFEST(
        noise_ratio=noise_ratio, false_positives=false_positives, contribution_norm=3.0, always_on_rows=0
    )


def _fest(share: float) -> MakeSelection:
    def selection(examples: BrownExamples, _: Setting) -> Selection:
        rows = examples.frequent(round(share * examples.size))
        return sdp.FEST({"context": rows, "output": rows}, always_on_rows=0)

    return selection


NON_PRIVATE = Setting("without privacy", None, learning_rate=0.003, batch=256)
DP_SGD = Setting("DP-SGD", lambda *_: sdp.DPSGD(), learning_rate=300.0, max_grad_norm=0.1)
EXPONENTIAL = Setting("exponential", _exponential, learning_rate=2000.0, max_grad_norm=CLIP)
SPARSE_VECTOR = Setting("sparse vector", _sparse_vector, learning_rate=2000.0, max_grad_norm=CLIP)
RANDOM = Setting("random", _random(), learning_rate=2000.0, max_grad_norm=CLIP)
FASTER = replace(RANDOM, name="random, learning rate 4,000", learning_rate=4000.0)
MORE_COORDINATES = Setting(
    "random, 10% of coordinates", _random(share=0.1), learning_rate=1000.0, max_grad_norm=0.1
)
WIDE_CLIP = Setting("random, S1 = 15", _random(), learning_rate=5.0, max_grad_norm=15.0)
CLIPPED_TWICE = Setting(
    "random, S1 = 15, S2 = 0.0005", _random(0.0005), learning_rate=150.0, max_grad_norm=15.0
)
ADAFEST = Setting("DP-AdaFEST", _adafest(2.0, 100), learning_rate=100.0)
FEST = Setting("DP-FEST", _fest(0.5), learning_rate=50.0)
ALL = (
    NON_PRIVATE,
    DP_SGD,
    EXPONENTIAL,
    SPARSE_VECTOR,
    RANDOM,
    FASTER,
    MORE_COORDINATES,
    WIDE_CLIP,
    CLIPPED_TWICE,
    ADAFEST,
    FEST,
)
AT_THREE = (
    replace(DP_SGD, learning_rate=150.0),
    replace(RANDOM, learning_rate=1000.0),
    replace(ADAFEST, learning_rate=150.0, max_grad_norm=0.1),
    replace(FEST, learning_rate=25.0),
)
"""At epsilon 3 the noise is larger and steps are smaller."""
MANY = tuple(
    replace(setting, learning_rate=rate, epochs=2)
    for setting, rate in (
        (NON_PRIVATE, NON_PRIVATE.learning_rate),
        (replace(DP_SGD, selection=lambda *_: sdp.DPSGD(lazy=True), max_grad_norm=0.3), 100.0),
        (replace(ADAFEST, selection=_adafest(1.0, 1000)), 100.0),
        (replace(FEST, selection=_fest(0.05)), 60.0),
    )
)
"""For 50,000 words: one setting each, not tuned. DP-SGD with lazy noise has the same final model in distribution, in less
time."""

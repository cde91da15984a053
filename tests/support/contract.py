"""Random training loops on random models, and the truth they are held against."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.selection import Selection
from support.misuse import EXACT, HABITS, Trainer
from support.naive import masked_clipped_mean, per_example_gradients
from support.neighbours import Outcome, Setting, distance
from support.zoo import LENGTH, ROWS, SOUND, UNSOUND, WIDTH

EXAMPLES = 7
MODELS = SOUND | UNSOUND
HAS_TABLE = {name for name, make in MODELS.items() if hasattr(make(), "table")} - {"tied"}

SELECTIONS: dict[str, Selection] = {
    "dpsgd": sdp.DPSGD(),
    "fest": sdp.FEST({"table": range(0, ROWS, 2)}),
    "adafest": sdp.AdaFEST(always_on_rows=0),
    "adafest+": sdp.AdaFEST(within=sdp.FEST({"table": range(0, ROWS, 2)})),
    "random rows": sdp.RandomSelection(rows=6, always_on_rows=0),
    "random coordinates": sdp.RandomSelection(coordinates=20, always_on_rows=0),
    "exponential": sdp.ExponentialSelection(rows=6, selection_epsilon=5.0, score_cap=1.0, always_on_rows=0),
    "sparse vector": sdp.SparseVectorSelection(
        rows=6, selection_epsilon=5.0, score_cap=1.0, threshold=0.01, always_on_rows=0
    ),
}


def data(seed: int) -> list[torch.Tensor]:
    """Ids and features; one example is far from the others, and one is not finite."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (EXAMPLES, LENGTH), generator=generator)
    features = torch.randn(EXAMPLES, LENGTH, WIDTH, generator=generator)
    features[0] *= 50
    features[-1, 0, 0] = float("nan")
    return [ids, features]


@dataclass(frozen=True)
class Case:
    """A model, a data set, a way of training it and the example that is taken away."""

    model: str
    selection: str
    habits: tuple[str, ...]
    batches: tuple[tuple[int, ...], ...]
    example: int
    poisson: bool
    physical: int | None
    reduction: str
    clip: float
    scale: float
    seed: int

    @property
    def setting(self) -> Setting:
        return Setting(
            model=MODELS[self.model],
            data=data(self.seed),
            batches=self.batches,
            clip=self.clip,
            poisson=self.poisson,
            options={
                "selection": SELECTIONS[self.selection],
                "loss_reduction": self.reduction,
                "physical_batch_size": self.physical,
            },
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(st.sampled_from(sorted(SOUND) + sorted(UNSOUND)))
    poisson = draw(st.booleans())
    habits = draw(st.lists(st.sampled_from(sorted(HABITS)) | st.just("plain"), min_size=1, max_size=4))
    some = st.lists(
        st.integers(0, EXAMPLES - 1), min_size=0 if poisson else 2, max_size=EXAMPLES, unique=True
    )
    batch = st.sampled_from([range(LENGTH), range(EXAMPLES)]) | some.map(sorted)
    return Case(
        model=model,
        selection=draw(st.sampled_from(sorted(SELECTIONS) if model in HAS_TABLE else ["dpsgd"])),
        habits=tuple(habits),
        batches=tuple(tuple(draw(batch)) for _ in habits),
        example=draw(st.integers(0, EXAMPLES - 1)),
        poisson=poisson,
        physical=draw(st.sampled_from([None, 1, 2, 3])) if poisson else None,
        reduction=draw(st.sampled_from(["mean", "sum"])),
        clip=draw(st.sampled_from([0.01, 1.0, 50.0])),
        scale=draw(st.sampled_from([1e-20, 1e-6, 1.0, 100.0, 1e6, 1e15])),
        seed=draw(st.integers(0, 5)),
    )


def check(case: Case) -> None:
    """One example moves no step by more than C, or the use is refused; sound use is the textbook's step."""
    setting, loop = case.setting, Trainer(case.habits, reduction=case.reduction, scale=case.scale)
    full = setting.run(loop)
    without = setting.run(loop, without=case.example, like=full)
    for outcome in (full, without):
        if outcome.error is not None:
            check_refusal(outcome.error)
    for number in full.sums.keys() & without.sums.keys():
        moved = distance(full.sums[number], without.sums[number]) / case.clip
        assert moved <= 1.0, f"batch {number}: one example moves the sum by {moved} C"
        if number in full.maps and number in without.maps:
            check_maps(full.maps[number], without.maps[number])
    if full.error is None and without.error is None:
        assert full.sums.keys() == without.sums.keys()
    if case.model in SOUND and set(case.habits) <= EXACT:
        assert full.error is None, f"refused: {full.error!r}"
        check_truth(case, full)


def check_refusal(error: Exception) -> None:
    """It is one of ours: torch's own would say nothing about privacy."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    assert isinstance(error, ValueError | RuntimeError), repr(error)
    assert "/sparsedp/" in last, f"{error!r} comes from {last}"


def check_maps(first: dict[int, float], second: dict[int, float]) -> None:
    """With one table the contribution norm is 1."""
    moved = sum((first.get(row, 0.0) - second.get(row, 0.0)) ** 2 for row in first.keys() | second.keys())
    assert moved <= 2.0 + 1e-9


def check_truth(case: Case, found: Outcome) -> None:
    """The textbook's step, one example at a time."""
    torch.manual_seed(0)
    setting, loop = case.setting, Trainer([], reduction=case.reduction, scale=case.scale)

    def loss(model: nn.Module, example: int) -> Tensor:
        ids, features = (part[example : example + 1] for part in data(case.seed))
        return loop.loss(ids, features, model(ids, features))

    gradients = per_example_gradients(setting.model(), loss, EXAMPLES)
    for number, sums in found.sums.items():
        batch = [gradients[example] for example in case.batches[number]]
        expected = masked_clipped_mean(batch, found.masks.get(number, {}), case.clip, 1.0)
        for name, values in sums.items():
            want = expected.get(name, torch.zeros(())).double().expand_as(values)
            torch.testing.assert_close(values, want, rtol=1e-3, atol=1e-4 * case.clip)

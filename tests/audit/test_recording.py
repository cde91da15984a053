"""Record and replay of whole trainings: every claim holds on the pair, and each planted fault is found."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.replays import EXAMPLE, OPTIMIZERS, SELECTIONS, Training, clicks, one_pass

import sparsedp as sdp
from sparsedp.audit import EANA, replay
from sparsedp.core.counts import SparseCounts
from sparsedp.training import Private
from sparsedp.training.batch import LogicalBatch
from sparsedp.training.loader import PoissonLoader
from sparsedp.training.noise import Noise


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def training(selection: str = "AdaFEST", **changes: Any) -> Training:
    if "lazy" in selection:  # pending noise is drawn where a row is read: hold the tables' weights
        changes = {"table_lr": 0.0} | changes
    return Training(SELECTIONS[selection], **changes)


@pytest.mark.parametrize("selection", sorted(SELECTIONS))
@pytest.mark.parametrize("physical", [None, 3])
def test_every_selection_keeps_its_claim(selection: str, physical: int | None) -> None:
    result = replay(training(selection, options={"physical_batch_size": physical}), clicks(), EXAMPLE)
    assert not result.faults, result
    steps = result.moved - (selection in ("FEST", "AdaFEST+", "FEST in turns"))
    assert steps == result.samples > 0


@pytest.mark.parametrize("selection", ["DPSGD", "AdaFEST", "FEST", "exponential"])
def test_the_claim_is_tight(selection: str) -> None:
    """The example is clipped: a replay that could not see the gradient would use nothing of the claim."""
    result = replay(training(selection, epochs=4), clicks(), EXAMPLE)
    assert not result.faults, result
    assert 0.99 < result.largest_share <= 1.0


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("selection", ["AdaFEST", "FEST of public rows"])
def test_every_optimiser(optimizer: str, selection: str) -> None:
    assert not replay(training(selection, optimizer=optimizer), clicks(), EXAMPLE).faults


USERS = np.arange(40) // 4
"""Four rows each."""


@pytest.mark.parametrize("sample", ["users", "rows"])
@pytest.mark.parametrize("selection", ["DPSGD", "AdaFEST", "AdaFEST with memory", "FEST of public rows"])
def test_all_rows_of_a_user_together(selection: str, sample: Any) -> None:
    made = training(
        selection,
        epochs=4,
        users=lambda: sdp.UserSampler(USERS, rows_per_user=3, sample=sample),
        options={"unit": "user", "expected_batch_size": 4 if sample == "users" else 10},
    )
    result = replay(made, clicks(), [8, 9, 10, 11])
    assert not result.faults, result
    assert 0 < result.moved <= result.samples
    assert result.largest_share > (0.99 if sample == "users" else 0.3)


def test_rows_of_a_user_that_are_clipped_one_by_one_are_found() -> None:
    """The control: each row is within its own claim, the user's rows together are not."""
    result = replay(training("DPSGD", epochs=8), clicks(), [8, 9, 10, 11])
    assert "charged are" in str(result)


@pytest.mark.parametrize(
    "selection",
    ["DPSGD", "lazy", "lazy FEST", "AdaFEST", "AdaFEST with memory", "AdaFEST+", "FEST", "exponential"],
)
def test_a_resumed_training(selection: str, tmp_path: Path) -> None:
    result = replay(training(selection, checkpoint=tmp_path / "saved"), clicks(), EXAMPLE)
    assert not result.faults, result
    assert len(result.charges) >= 8


def test_workers_fetch_ahead() -> None:
    class Ahead(Training):
        def _start(self, data: Any) -> Any:
            engine, private = super()._start(data)
            private.data_loader._options |= {"num_workers": 1, "multiprocessing_context": "fork"}
            return engine, private

    result = replay(Ahead(SELECTIONS["AdaFEST"], epochs=1), clicks(), EXAMPLE)
    assert not result.faults, result


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(SELECTIONS)),
    st.sampled_from([None, 1, 2, 7]),
    st.sampled_from([0.01, 1.0, 50.0]),
    st.sampled_from([0.3, 1.0, 20.0]),
    st.integers(1, 38),
    st.integers(0, 3),
)
def test_random_settings(
    selection: str, physical: int | None, clip: float, noise: float, example: int, seed: int
) -> None:
    options = {"physical_batch_size": physical, "max_grad_norm": clip, "noise_multiplier": noise}
    result = replay(training(selection, epochs=1, options=options), clicks(seed), example)
    assert not result.faults, result


# --- misuse: refused in both runs, or within the claim ---------------------------------------------------


def two_passes(private: Private) -> None:
    for ids, target in private.data_loader:
        for _ in range(2):
            (private.module(ids) - target).square().mean().backward()
        private.optimizer.step()


def leaves_early(private: Private) -> None:
    for number, (ids, target) in enumerate(private.data_loader):
        (private.module(ids) - target).square().mean().backward()
        private.optimizer.step()
        if number == 1:
            return


def no_step(private: Private) -> None:
    for ids, target in private.data_loader:
        (private.module(ids) - target).square().mean().backward()


def twice(private: Private) -> None:
    for ids, target in private.data_loader:
        both = torch.cat([ids, ids])
        (private.module(both) - torch.cat([target, target])).square().mean().backward()
        private.optimizer.step()


@pytest.mark.parametrize("loop", [two_passes, leaves_early, no_step, twice])
def test_misuse_is_refused_alike_or_within_the_claim(loop: Any) -> None:
    result = replay(training(loop=loop, options={"physical_batch_size": 4}), clicks(), EXAMPLE)
    assert not result.faults, result


# --- controls: each fault must be found ------------------------------------------------------------------


def test_noise_on_touched_rows_alone_is_found() -> None:
    result = replay(Training(lambda data: EANA()), clicks(), EXAMPLE)
    assert "size depends on the example" in str(result)


def test_dividing_by_the_realised_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def realised(self: Noise, rule: Any, coordinates: int, source: Any) -> None:
        original(self, rule, coordinates, source)
        self.divisor = float(sizes[-1])

    def accumulate(self: LogicalBatch, *args: Any) -> None:
        sizes.append(max(self.size, 1))
        add(self, *args)

    sizes, original, add = [1], Noise.__init__, LogicalBatch.accumulate_rows
    monkeypatch.setattr(Noise, "__init__", realised)
    monkeypatch.setattr(LogicalBatch, "accumulate_rows", accumulate)
    assert "divisor depends on the example" in str(replay(training(), clicks(), EXAMPLE))


def test_clipping_tables_and_layers_separately_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def dense_alone(self: LogicalBatch, survivors: Any) -> Any:
        return self.dense_squared_norms + 0.0

    monkeypatch.setattr(LogicalBatch, "squared_norms", dense_alone)
    result = replay(training("FEST of public rows"), clicks(), EXAMPLE)
    assert "charged are" in str(result)


def test_a_map_that_is_not_clipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogicalBatch.contributions

    def doubled(self: LogicalBatch, *args: Any) -> SparseCounts:
        counts = original(self, *args)
        return SparseCounts(counts.ids, 2 * counts.values, counts.size)

    monkeypatch.setattr(LogicalBatch, "contributions", doubled)
    assert "charged are" in str(replay(training(epochs=4), clicks(), EXAMPLE))


def test_a_loss_that_mixes_examples_is_found() -> None:
    def mixes(private: Private) -> None:
        for ids, target in private.data_loader:
            output = private.module(ids) - target
            (output - output.mean()).square().mean().backward()
            private.optimizer.step()

    assert "charged are" in str(replay(training("DPSGD", loop=mixes, epochs=4), clicks(), EXAMPLE))


def test_stopping_by_the_training_loss_is_found() -> None:
    def stops(private: Private) -> None:
        for ids, target in private.data_loader:
            loss = (private.module(ids) - target).square().sum()
            loss.backward()
            private.optimizer.step()
            if len(ids) and float(target.abs().max()) >= farthest:
                return

    data = clicks()
    farthest = float(data.tensors[1].abs().max())
    example = int(data.tensors[1].abs().argmax())
    result = replay(training(loop=stops, epochs=4), data, example)
    assert result.samples
    assert "did not make" in str(result) or "not made" in str(result)


def test_weights_that_move_by_the_batch_itself_are_found() -> None:
    def nudges(private: Private) -> None:
        for ids, target in private.data_loader:
            (private.module(ids) - target).square().mean().backward()
            private.optimizer.step()
            with torch.no_grad():
                private.module.out.bias += 1e-6 * target.sum()

    assert "differs although" in str(replay(training("DPSGD", loop=nudges, epochs=4), clicks(), EXAMPLE))


def test_an_example_in_more_batches_than_sampled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PoissonLoader._pieces

    def always(self: PoissonLoader, steps: range) -> Any:
        present = not self.dataset.absent
        for piece in original(self, steps):
            if present and EXAMPLE not in piece.indices:
                piece = piece._replace(indices=np.append(piece.indices, EXAMPLE))
            yield piece

    monkeypatch.setattr(PoissonLoader, "_pieces", always)
    result = replay(training("DPSGD"), clicks(), EXAMPLE)
    assert f"was in {result.samples} batches and moved the draws of 8" in str(result)


def test_noise_that_is_not_charged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsedp.training.session.note_charge", lambda event: None)
    assert "drawn before anything was charged" in str(replay(training(), clicks(), EXAMPLE))


def test_a_charge_that_is_too_low_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sdp.AdaFEST.step_event
    monkeypatch.setattr(sdp.AdaFEST, "step_event", lambda self, sigma: original(self, 1.1 * sigma))
    assert "charged are" in str(replay(training(epochs=6), clicks(), EXAMPLE))


def test_only_an_inner_example_is_taken_out() -> None:
    for index in (0, 39, -1, 40, [], [3, 39]):
        with pytest.raises(ValueError, match=r"^index must lie strictly between 0 and 39"):
            replay(one_pass, clicks(), index)


def test_a_replay_that_moved_nothing_says_that_it_is_no_evidence() -> None:
    idle = replay(lambda _: None, clicks(), EXAMPLE)
    assert not idle.faults
    assert "no evidence" in str(idle)
    assert "no evidence" not in str(replay(training(), clicks(), EXAMPLE))

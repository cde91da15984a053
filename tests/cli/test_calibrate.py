from __future__ import annotations

import json

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.accounting import GaussianDpEvent, PoissonSampledDpEvent, epsilon_of, merge_sigmas
from sparsedp.accounting import calibrate as smallest_sigma

RATE = ["--sampling-rate", "0.01", "--steps", "100", "--delta", "1e-6"]
SIZES = ["--examples", "1e5", "--expected-batch-size", "1000", "--epochs", "1"]


def test_the_noise_multiplier_of_an_epsilon_with_its_statement() -> None:
    sigma = smallest_sigma(target_epsilon=1.0, target_delta=1e-6, sampling_rate=0.01, steps=100)
    for parameters in (RATE, SIZES):
        said = json.loads(invoke("calibrate", "--epsilon", "1", *parameters, "--json").stdout)
        assert said["noise_multiplier"] == sigma
        assert said["steps"] == 100
        assert 0.99 < said["statement"]["epsilon"] <= 1.0
        assert said["statement"]["delta"] == pytest.approx(1e-6)
    text = invoke("calibrate", "--epsilon", "1", *RATE).stdout
    for words in (
        f"noise_multiplier: {sigma:.6g}",
        "add-or-remove-one",
        "unit: example",
        "released: the model",
    ):
        assert words in text


def test_account_answers_with_the_epsilon_that_was_asked_for() -> None:
    said = json.loads(invoke("calibrate", "--epsilon", "1", *RATE, "--json").stdout)
    noise = ["--noise-multiplier", str(said["noise_multiplier"])]
    spent = json.loads(invoke("account", *noise, *RATE, "--json").stdout)["epsilon"]
    assert spent == pytest.approx(said["statement"]["epsilon"])


def test_adafest_splits_its_noise_and_fest_pays_for_its_rows() -> None:
    plain = json.loads(invoke("calibrate", "--epsilon", "1", *RATE, "--json").stdout)["noise_multiplier"]
    ada = json.loads(
        invoke(
            "calibrate", "--epsilon", "1", *RATE, "--algorithm", "adafest", "--noise-ratio", "5", "--json"
        ).stdout
    )
    assert ada["noise_multiplier"] == plain
    assert ada["map_noise_multiplier"] == pytest.approx(5 * ada["gradient_noise_multiplier"])
    assert merge_sigmas(ada["map_noise_multiplier"], ada["gradient_noise_multiplier"]) == pytest.approx(plain)
    asked = ("--algorithm", "fest", "--rows", "100", "--fest-mu", "0.2")
    fest = json.loads(invoke("calibrate", "--epsilon", "1", *RATE, *asked, "--json").stdout)
    assert fest["noise_multiplier"] > plain
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(fest["noise_multiplier"]))
    events = [(GaussianDpEvent(5.0), 1), (step, 100)]
    assert epsilon_of(events, 1e-6) == pytest.approx(fest["statement"]["epsilon"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "-1", *RATE], "epsilon must"),
        (["--epsilon", "nan", *RATE], "epsilon must"),
        (["--epsilon", "1", "--steps", "5", "--delta", "1e-6"], "sampling_rate is missing"),
        (["--epsilon", "1", "--sampling-rate", "0.1", "--delta", "1e-6"], "steps is missing"),
        (["--epsilon", "1", "--sampling-rate", "0.1", "--steps", "5"], "delta is missing"),
        (["--epsilon", "1", *RATE, "--algorithm", "fest"], "rows: algorithm fest needs"),
        (["--epsilon", "1", *RATE, "--algorithm", "non-private"], "epsilon: a non-private run has none"),
        (
            ["--epsilon", "1", *RATE, "--algorithm", "fest", "--rows", "9", "--fest-mu", "9"],
            "target_epsilon of 1",
        ),
    ],
    ids=str,
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    assert_refused(invoke("calibrate", *arguments), words)

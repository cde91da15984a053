"""Reports of runs: the statement in plain words, figures, charts; read by a browser."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm
from support.browser import dots, opened
from support.runs import config

from sparsedp.accounting import GaussianDpEvent, PrivacyStatement, epsilon_of, trade_off_curve
from sparsedp.report import FinishedRun, write_report
from sparsedp.report.run_report import auc_against_epsilon, privacy_card, trade_off_chart
from sparsedp.runs import RunFolder

STATEMENT = {
    "epsilon": 1.98,
    "delta": 1e-5,
    "adjacency": "add-or-remove-one",
    "unit": "example",
    "released": "the model after every step",
    "private": True,
    "notes": [],
}


def finished(path: Path, algorithm: str = "adafest", *, auc: float = 0.6, **changes: Any) -> Path:
    """A folder as a finished run leaves it."""
    folder = RunFolder(path)
    folder.create(config(algorithm, **changes))
    private = algorithm != "non-private"
    for step in (40, 80):
        folder.log({"step": step, "auc": auc - 1 / step, "log_loss": 0.6, "epsilon": 1.0, "rows": 10.0})
    result: dict[str, Any] = {
        "auc": auc,
        "log_loss": 0.61,
        "held_out_rows": 100,
        "steps": 80,
        "training_rows": 900,
        "rows": 11.0 if private else None,
        "gradient_size": 44.0 if private else None,
        "table_coordinates": 40_000,
        "reduction": 909.1 if private else None,
        "rows_per_table": {"embeddings.0": 4.0, "embeddings.1": 7.0} if private else {},
        "examples_per_second": 1234.0,
        "seconds": 3.0,
        "noise_multiplier": 1.1 if private else None,
        "map_noise_multiplier": 5.5 if private else None,
        "gradient_noise_multiplier": 1.12 if private else None,
        "threshold": 66.25 if private else None,
        "features": {"embeddings.0": "city", "embeddings.1": "user"} if private else {},
        "statement": STATEMENT if private else None,
    }
    folder.write_json("result", result)
    return path


AUDIT = {
    "claimed": STATEMENT,
    "copy": {**STATEMENT, "epsilon": 1.5},
    "steps": 40,
    "lower_bound": 0.4321,
    "confidence": 0.95,
    "canaries": 1000,
}


def test_an_audited_bound_stands_beside_the_claim(tmp_path: Path, browser: Any) -> None:
    path = finished(tmp_path / "run")
    assert "audited" not in privacy_card(FinishedRun.read(path))
    RunFolder(path).write_json("audit", AUDIT)
    page, errors, _ = opened(browser, write_report([path], tmp_path / "report.html"))
    assert not errors
    assert page.locator("dl.figures div").all_inner_texts()[:2] == [
        "epsilon\n1.98",
        "audited epsilon\n≥ 0.432",
    ]
    words = page.locator(".card").inner_text()
    assert "1,000 canaries, 40 steps" in words
    assert "add-or-remove-one, unit: example, released: the model after every step; confidence 0.95" in words
    assert "does not prove the claim" in words
    assert "period" not in words
    RunFolder(path).write_json("audit", {**AUDIT, "period": 2})
    assert "configuration in period 2, whose records cost most, with 1,000" in privacy_card(
        FinishedRun.read(path)
    )
    RunFolder(path).write_json("audit", {**AUDIT, "lower_bound": 1.7})
    assert "The audit refutes the claim" in privacy_card(FinishedRun.read(path))


def test_a_comparison_in_the_browser(tmp_path: Path, browser: Any) -> None:
    runs = [
        finished(tmp_path / "plain", "non-private", auc=0.7),
        finished(tmp_path / "one", epsilon=1.0),
        finished(tmp_path / "three", epsilon=3.0, auc=0.64),
        finished(tmp_path / "dense", "dp-sgd", epsilon=3.0, auc=0.63),
    ]
    report = write_report(runs, tmp_path / "report.html")
    assert report.stat().st_size < 200_000
    page, errors, requests = opened(browser, report, viewport={"width": 390, "height": 844})
    assert [count > 0 for count in dots(page)] == [True] * 5
    assert page.locator("script").count() == 0
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    text = page.locator("main").inner_text()
    for words in (
        "4 runs compared",
        "NOT PRIVATE",
        "DP-AdaFEST, epsilon 3",
        "add-or-remove-one",
        "AUC against epsilon",
        "What an attacker can find out",
    ):
        assert words in text
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    page.context.close()


def test_a_single_run_names_everything_a_reviewer_needs(tmp_path: Path) -> None:
    path = write_report([finished(tmp_path / "run")], tmp_path / "out" / "report.html")
    text = path.read_text().rsplit("</head>", 1)[1]
    for words in (
        "sparsedp: DP-AdaFEST, epsilon 2",
        "add-or-remove-one",
        "unit: example",
        "the model after every step",
        "909.1",
        "0.6000",
        "1e-05",
        "held-out",
        "<th scope=row>threshold</th><td>66.25</td>",
        "<th scope=row>map_noise_multiplier</th><td>5.5</td>",
        "<th scope=row>gradient_noise_multiplier</th><td>1.12</td>",
        "<th scope=row>unit</th><td>example</td>",
        "<th scope=row>adjacency</th><td>add-or-remove-one</td>",
    ):
        assert words in text
    assert "AUC against epsilon" not in text  # one budget only
    assert "NOT PRIVATE" not in text


def test_a_seeded_run_is_called_not_private(tmp_path: Path) -> None:
    run = FinishedRun.read(finished(tmp_path / "run"))
    notes = ["the noise is seeded", "spent by all runs on the ledger"]
    run.result["statement"] = {**STATEMENT, "private": False, "notes": notes}
    card = privacy_card(run)
    assert "NOT PRIVATE: the noise is seeded<" in card  # the other note is no reason
    assert "can hardly tell" not in card
    assert "can hardly tell" in privacy_card(FinishedRun.read(tmp_path / "run"))


def test_settings_are_shared_or_a_line_for_each_run(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / "sharp", noise_ratio=2.0),
        finished(tmp_path / "blunt", noise_ratio=5.0),
        finished(tmp_path / "fest", "fest", rows=7777),
    ]
    page = write_report(runs, tmp_path / "report.html").read_text().rsplit("<body>", 1)[1]
    shared, differing = page.split("<table>")[1:3]
    assert "<th scope=row>expected_batch_size</th><td>500</td>" in shared
    assert "noise_ratio" not in shared
    assert "<th scope=col>noise_ratio</th>" in differing
    assert all(f"<td>{value}</td>" in differing for value in ("2", "5", "7,777"))


def test_one_evaluation_draws_no_course(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert "Quality over time" in write_report([run], tmp_path / "two.html").read_text()
    RunFolder(run).discard_after(40)
    assert "Quality over time" not in write_report([run], tmp_path / "one.html").read_text()


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", data="<img src=x onerror=alert(1)>")
    assert "<img" not in write_report([run], tmp_path / "report.html").read_text().rsplit("<body>", 1)[1]


def test_auc_against_epsilon_has_one_line_an_algorithm(tmp_path: Path) -> None:
    runs = [
        FinishedRun.read(finished(tmp_path / "three", epsilon=3.0, auc=0.64)),
        FinishedRun.read(finished(tmp_path / "one", epsilon=1.0, auc=0.6)),
        FinishedRun.read(finished(tmp_path / "dense", "dp-sgd", epsilon=3.0, auc=0.63)),
        FinishedRun.read(finished(tmp_path / "plain", "non-private", auc=0.7)),
    ]
    chart = auc_against_epsilon(runs)
    lines = {series.name: (list(series.x), list(series.y)) for series in chart.series}
    assert lines == {"DP-AdaFEST": ([1.0, 3.0], [0.6, 0.64]), "DP-SGD": ([3.0], [0.63])}
    assert chart.level == (0.7, "without privacy")
    assert chart.x_ticks == [1.0, 3.0]


def test_columns_are_named_and_the_one_with_the_most_rows_is_first(tmp_path: Path) -> None:
    text = write_report([finished(tmp_path / "run")], tmp_path / "report.html").read_text()
    chart = text.split("Rows with noise per column and step", 1)[1]
    assert "The column with the most rows first." in chart
    assert "embeddings.0" not in chart
    assert chart.index(">user</text>") < chart.index(">city</text>")


def test_a_phone_shows_epsilon_and_delta_of_every_run_at_a_glance(tmp_path: Path, browser: Any) -> None:
    """At 400 pixels: inside the page, not in a part of a table that has to be scrolled to."""
    runs = [finished(tmp_path / "one", epsilon=1.0), finished(tmp_path / "three", epsilon=3.0)]
    report = write_report(runs, tmp_path / "report.html")
    page, errors, _ = opened(browser, report, viewport={"width": 400, "height": 850})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for card in page.locator(".card").all():
        for name, value in (("epsilon", "1.98"), ("delta", "1e-05")):
            shown = card.locator(".figures div", has_text=name)
            assert value in shown.inner_text() or "together" in card.inner_text()
            box = shown.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400
    top = page.locator(".card").first.locator(".figures").bounding_box()
    assert top["y"] + top["height"] < 850  # the first screen
    assert errors == []
    page.context.close()


def test_what_an_attacker_can_find_out(tmp_path: Path, browser: Any) -> None:
    """A line for each private run, below guessing, legible on a phone; all that an advantage needs beside it."""
    events = [(GaussianDpEvent(1.0), 1)]
    told = PrivacyStatement(epsilon_of(events, 1e-5), 1e-5, "add-or-remove-one", "user", "the final model")
    told = dataclasses.replace(told, trade_off=trade_off_curve(events))
    runs = [finished(tmp_path / "one"), finished(tmp_path / "plain", "non-private")]
    result = RunFolder(runs[0]).read_json("result")
    assert result is not None
    RunFolder(runs[0]).write_json("result", {**result, "statement": told.to_dict()})
    run = FinishedRun.read(runs[0])
    assert run.statement is not None
    line, guessing = trade_off_chart([(run, run.statement)]).series
    for x, y in zip(line.x, line.y, strict=True):
        assert y == pytest.approx(norm.cdf(norm.isf(x) - 1), abs=0.01)
    assert list(zip(guessing.x, guessing.y, strict=True)) == [(0, 1), (1, 0)]
    page, errors, _ = opened(
        browser, write_report(runs, tmp_path / "report.html"), viewport={"width": 400, "height": 850}
    )
    section = page.locator("section", has_text="What an attacker can find out")
    for words in (
        "on one user (add-or-remove-one adjacency, released: the final model)",
        "advantage at most 0.383",
    ):
        assert words in section.inner_text()
    chart = section.locator("svg.narrow").bounding_box()
    assert chart["x"] >= 0
    assert chart["x"] + chart["width"] <= 400
    assert "least possible false negative rate" in section.locator("svg.narrow").text_content()
    assert errors == []
    page.context.close()


def test_a_seeded_run_is_not_drawn_as_private(tmp_path: Path) -> None:
    run = FinishedRun.read(finished(tmp_path / "run"))
    run.result["statement"] = {**STATEMENT, "private": False, "notes": ["the noise is seeded"]}
    assert run.statement is not None
    assert trade_off_chart([(run, run.statement)]).series[0].name == "DP-AdaFEST, epsilon 2 (NOT PRIVATE)"


def test_no_attacker_where_nothing_is_private(tmp_path: Path) -> None:
    text = write_report([finished(tmp_path / "run", "non-private")], tmp_path / "report.html").read_text()
    assert "What an attacker can find out" not in text


def test_runs_on_the_same_data_have_a_joint_epsilon(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "one"), finished(tmp_path / "two")]
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "All 2 runs on the same data together" in text
    assert "(3.96, 2e-05)-DP, add-or-remove-one adjacency, unit: example" in text  # no ledgers: added up
    plain = finished(tmp_path / "plain", "non-private")
    text = write_report([*runs, plain], tmp_path / "report.html").read_text()
    assert "NOT PRIVATE together" in text
    assert "on the same data together" not in write_report([runs[0]], tmp_path / "one.html").read_text()


def test_runs_that_may_be_on_the_same_data_are_named(tmp_path: Path) -> None:
    runs = [finished(tmp_path / name, data=f"{name}/data") for name in ("one", "two")]
    RunFolder(runs[0]).write_json("private/data", {"digest": "y"})
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "It is not known whether these are on the same data as the others" in text
    assert f"epsilon 2 ({runs[1]}). Their folders" in text
    RunFolder(runs[1]).write_json("private/data", {"digest": "z"})
    assert "It is not known" not in write_report(runs, tmp_path / "report.html").read_text()


def test_a_vocabulary_that_cost_something_is_said(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    RunFolder(run).write_json(
        "data", {"relative": "x", "digest": "y", "vocabulary_statement": "(4, 1e-06)-DP"}
    )
    assert "it adds (4, 1e-06)-DP" in write_report([run], tmp_path / "report.html").read_text()


def test_a_streaming_run_has_a_report_too(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", period=1)
    result = RunFolder(run).read_json("result")
    assert result is not None
    del result["noise_multiplier"], result["held_out_rows"]
    RunFolder(run).write_json("result", {**result, "periods": 3, "next_period_auc": [0.5, 0.6, 0.6]})
    assert write_report([run], tmp_path / "report.html").exists()


def test_what_is_not_finished_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path / "begun").create(config())
    with pytest.raises(ValueError, match="begun is not finished"):
        write_report([tmp_path / "begun"], tmp_path / "report.html")
    with pytest.raises(ValueError, match="holds no run"):
        write_report([tmp_path / "nothing"], tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"^runs: "):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()

"""``sparsedp audit``: attack the claims of a run, or the library's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.core.rounding_up import rounded_up
from sparsedp.core.strict_json import json_text

if TYPE_CHECKING:
    from sparsedp.audit.case import Auditable, Finding
    from sparsedp.runs.auditing import RunAudit

_SEEN = {
    "gradient": "released gradients",
    "rows": "gradients of the canaries' rows",
    "moves": "which rows moved",
    "loss": "the canaries' losses",
}


@refuse_bad_input
def audit(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Audit the library: every mechanism and algorithm.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Of the library: only what has this in its name; may be repeated."),
    ] = None,
    available: Annotated[bool, typer.Option("--list", help="Only list the library's audits.")] = False,
    out: Annotated[Path | None, typer.Option(help="Of the library: the page to write, in Markdown.")] = None,
    effort: Annotated[
        float, typer.Option(help="Of the library: multiplies the number of runs and canaries.")
    ] = 1.0,
    canaries: Annotated[int, typer.Option(help="Of a run: canaries in the copy that is trained.")] = 1000,
    steps: Annotated[int, typer.Option(help="Of a run: the most steps of the copy.")] = 200,
    confidence: Annotated[float, typer.Option(help="Of a run: how sure the lower bound is.")] = 0.95,
    seed: Annotated[
        int | None, typer.Option(help="Makes an audit reproducible. Default: 0 for --all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack claims of privacy: what is claimed beside an audited lower bound on epsilon.

    Exit code 1 where an audit refutes a claim, or does not refute a form that is known to be wrong.
    """
    if (run is not None) == (every or bool(only) or available):
        raise ValueError(
            "run: give the folder of a run, or --all (or --only, --list) for the library's own audits"
        )
    if run is not None:
        _audit_run(run, canaries, steps, confidence, seed, as_json)
        return
    chosen = _chosen(only)
    if available:
        names = [case.name for case in chosen]
        typer.echo(json_text(names) if as_json else "\n".join(names))
        return
    if not effort > 0 or effort == float("inf"):
        raise ValueError(f"effort must be positive and finite, got {effort}")
    found = _audit_library(chosen, effort, seed or 0, as_json)
    if out is not None:
        which = "".join(f" --only '{part}'" for part in only or ()) or " --all"
        size = "" if effort == 1.0 else f" --effort {effort:g}"
        _write(out, found, f"sparsedp audit{which}{size} --out docs/audits.md", seed or 0)
    wrong = sum(not finding.is_expected for finding in found)
    if wrong:
        typer.echo(f"sparsedp: {wrong} of {len(found)} audits found what they should not", err=True)
        raise typer.Exit(1)


def _audit_run(
    path: Path, canaries: int, steps: int, confidence: float, seed: int | None, as_json: bool
) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    from sparsedp.runs.auditing import audit_run
    from sparsedp.runs.folder import RunFolder

    found = audit_run(RunFolder(path), canaries=canaries, steps=steps, confidence=confidence, seed=seed)
    typer.echo(json_text(asdict(found)) if as_json else _in_words(found, path))
    if found.refutation is not None:
        typer.echo(f"sparsedp: the audit refutes the claim: {found.refutation}", err=True)
        raise typer.Exit(1)


def _in_words(found: RunAudit, path: Path) -> str:
    from sparsedp.accounting import PrivacyStatement

    claimed, of_copy = (
        PrivacyStatement(**{**fields, "notes": tuple(fields["notes"])})
        for fields in (found.claimed, found.copy)
    )
    return (
        f"claimed: {claimed}\n"
        f"audited: epsilon >= {found.lower_bound:.3g} at delta {of_copy.delta:.3g}, {of_copy.adjacency} adjacency, unit: "
        f"{of_copy.unit}, released: {of_copy.released}; confidence {found.confidence:g} (>= "
        f"{found.gaussian_lower_bound:.3g} if the training is Gaussian DP)\n"
        f"how: one training of a copy{_of_period(found)} with {found.canaries:,} canaries, {found.steps:,} steps, "
        f"which may spend epsilon {rounded_up(of_copy.epsilon, 3)} of the same kind; the best attack looked at "
        f"{_SEEN[found.attack]}; {found.seconds:.0f} s. A bound below the claim does not prove the claim.\n"
        f"written: {path / 'audit.json'}"
    )


def _of_period(found: RunAudit) -> str:
    from sparsedp.runs.auditing import why_period

    if found.period is None:
        return ""
    claim = "each example is in one period, and the claim is for each of them"
    if found.claimed["unit"] == "user":
        claim = "a user may have rows in all periods, and the claim is for all of them together"
    return f" of period {found.period}, counted from 0, {why_period(found.claimed)} ({claim})"


def _chosen(only: list[str] | None) -> list[Auditable]:
    from sparsedp.audit.cases import library_cases
    from sparsedp.runs import audited_models, audited_releases

    listed = [*library_cases(), *audited_releases.cases(), *audited_models.cases()]
    if not only:
        return listed
    found = [case for case in listed if any(part in case.name for part in only)]
    if not found:
        raise ValueError(f"only: no audit has {' or '.join(map(repr, only))} in its name; --list shows them")
    return found


def _audit_library(cases: list[Auditable], effort: float, seed: int, as_json: bool) -> list[Finding]:
    from sparsedp.audit.case import run_cases

    found: list[Finding] = []
    for finding in run_cases(cases, seed=seed, effort=effort):
        found.append(finding)
        if not as_json:
            typer.echo(str(finding))
    if as_json:
        typer.echo(json_text([{**asdict(finding), "is_expected": finding.is_expected} for finding in found]))
    return found


def _write(out: Path, found: list[Finding], command: str, seed: int) -> None:
    from sparsedp.audit.case import FAMILY_ERROR
    from sparsedp.audit.page import page
    from sparsedp.core.durable import write_file

    write_file(out, page(found, command=command, error=FAMILY_ERROR, seed=seed))
    typer.echo(f"written: {out}", err=True)

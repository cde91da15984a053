"""``sparsedp audit``: attack the library's claims, or those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input

if TYPE_CHECKING:
    from sparsedp.audit.case import Auditable, Finding

COMMAND = "sparsedp audit --all --out docs/audits.md"


@refuse_bad_input
def audit(
    every: Annotated[bool, typer.Option("--all", help="Audit every mechanism and algorithm.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Audit what has this in its name; may be repeated.")
    ] = None,
    available: Annotated[bool, typer.Option("--list", help="Only list the names.")] = False,
    out: Annotated[Path | None, typer.Option(help="The page to write, in Markdown.")] = None,
    effort: Annotated[float, typer.Option(help="Multiplies the number of runs and canaries.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Makes the page reproducible.")] = 0,
) -> None:
    """Attack claims of privacy: lower bounds on epsilon beside what is claimed."""
    from sparsedp.audit.case import FAMILY_ERROR

    chosen = _chosen(every, only)
    if available:
        typer.echo("\n".join(case.name for case in chosen))
        return
    if not effort > 0 or effort == float("inf"):
        raise ValueError(f"effort must be positive and finite, got {effort}")
    found = _run(chosen, seed, FAMILY_ERROR, effort)
    if out is not None:
        _write(out, found, seed, FAMILY_ERROR)
    wrong = [finding for finding in found if not finding.is_expected]
    if wrong:
        typer.echo(f"sparsedp: {len(wrong)} of {len(found)} audits found what they should not", err=True)
        raise typer.Exit(1)


def _chosen(every: bool, only: list[str] | None) -> list[Auditable]:
    from sparsedp.audit.cases import library_cases

    cases = [*library_cases()]
    if only:
        cases = [case for case in cases if any(part in case.name for part in only)]
    if not cases or not (every or only):
        known = "give --all, or --only with a part of a name (--all --list shows them)"
        raise ValueError(
            known if not only else f"only: no audit has {' or '.join(map(repr, only))} in its name"
        )
    return cases


def _run(cases: list[Auditable], seed: int, error: float, effort: float) -> list[Finding]:
    from sparsedp.audit.case import run_cases

    found = []
    for finding in run_cases(cases, seed=seed, error=error, effort=effort):
        typer.echo(str(finding))
        found.append(finding)
    return found


def _write(out: Path, found: list[Finding], seed: int, error: float) -> None:
    from sparsedp.audit.page import page
    from sparsedp.core.durable import write_file

    write_file(out, page(found, command=COMMAND, error=error, seed=seed))
    typer.echo(f"written: {out}")

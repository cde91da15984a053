"""The page of audits: every claim beside its audited lower bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsedp.audit.case import SINGLE_CONFIDENCE, Finding, Kind
from sparsedp.audit.one_run_case import ideal_bound
from sparsedp.randomness import NoiseSource

TITLES: dict[Kind, str] = {
    "mechanism": "Mechanisms",
    "step": "Steps",
    "training": "Selection over a whole training",
    "user": "Users",
    "floats": "Low bits of the noise",
    "one run": "Models, in one run",
}
"""The tables, in their order."""


def page(
    findings: Sequence[Finding], *, command: str, error: float, seed: int | None, after: str = ""
) -> str:
    """The findings as Markdown. ``error``: the probability that any bound is wrong."""
    stands = sum(finding.is_expected for finding in findings if not finding.is_control)
    caught = sum(finding.is_expected for finding in findings if finding.is_control)
    controls = sum(finding.is_control for finding in findings)
    parts = [
        "# Audits",
        _introduction(command, error, seed),
        f"**{stands} of {len(findings) - controls} claims stand; {caught} of {controls} known-bad forms are caught.** "
        f"All audits together took {sum(finding.seconds for finding in findings):.0f} seconds of one core.",
        *(f"- UNEXPECTED: {finding}" for finding in findings if not finding.is_expected),
    ]
    for kind, title in TITLES.items():
        own = [finding for finding in findings if finding.kind == kind]
        if own:
            parts += [f"## {title}", _table(finding for finding in own if not finding.is_control)]
            broken = [finding for finding in own if finding.is_control]
            if broken:
                parts += ["Known-bad forms, with the claim of the right one:", _table(broken)]
            if kind == "one run":
                parts += [_ONE_RUN, _attacks(own, seed)]
    return "\n\n".join([*parts, "## Tests", _TESTS]) + "\n"


def _introduction(command: str, error: float, seed: int | None) -> str:
    drawn = "by randomness of the operating system" if seed is None else f"with the seed {seed}"
    return (
        f"Made by `{command}`, {drawn}.\n\n"
        "An audit attacks a claim: it runs the code on two neighbouring data sets and looks for an event that is likelier "
        "on one of them than the claimed epsilon and delta allow. What it finds is a *lower* bound on epsilon. A bound below the "
        "claim does not prove the claim; a bound above it refutes it. Known-bad forms are in the list because an audit "
        "that cannot fail proves nothing: each must be refuted. A smaller form of these audits runs with the tests.[^tests]\n\n"
        f"All bounds of this page hold together with probability at least {1.0 - error:g}: each may err with an equal part "
        f"of {error:g} (Bonferroni).\n\n"
        "- Where runs are given as *4 x n*, the code ran 2n times on each of two data sets. The event was chosen among "
        "thresholds of one statistic on the first half; the second half bounds its two probabilities by Clopper and Pearson's "
        "intervals.\n"
        "- Where they are given as *1, m canaries*, one training had m canaries, each in its data by a fair coin of its "
        "own. The attacker sees what is released, guesses the coins of the highest and lowest scores, and the number of right "
        "guesses bounds epsilon by theorem 5.2 of Steinke, Nasr and Jagielski (2023), which takes delta into account. The error "
        "rate is shared among all scores and five numbers of guesses, fixed in advance."
    )


def _table(findings: Iterable[Finding]) -> str:
    lines = [
        "| audited | claimed epsilon | delta | audited: epsilon ≥ | runs | seconds | released; unit, adjacency | attack |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in findings:
        claim = each.claim
        bound = f"{each.lower_bound:.2f}" if each.is_expected else f"**{each.lower_bound:.2f}, UNEXPECTED**"
        lines.append(
            f"| {each.name} | {claim.epsilon:.2f} | {claim.delta:g} | {bound} | {each.runs} | {each.seconds:.1f} | "
            f"{claim.released}; {claim.unit}, {claim.adjacency} | {each.what} |"
        )
    return "\n".join(lines)


_TESTS = "[^tests]: " + ", ".join(
    f"`tests/{test}`"
    for test in (
        "audit/cases/test_mechanisms.py::test_claims_stand_and_controls_fall",
        "audit/cases/test_steps.py::test_claims_stand_and_controls_fall",
        "audit/cases/test_epochs.py::test_shuffled_batches_are_caught_and_poisson_batches_are_not",
        "audit/cases/test_trainings.py::test_claims_stand_and_controls_fall",
        "audit/cases/test_users.py::test_claims_stand_and_controls_fall",
        "audit/cases/test_floats.py::test_attacks_fail_on_the_lattice_and_succeed_on_floats",
        "runs/test_audited_releases.py::test_claims_stand_and_controls_fall",
        "runs/test_audited_models.py::test_bounds_grow_with_the_claim",
    )
)


_ONE_RUN = (
    f"The same trainings attack by attack, each training by itself at confidence {SINGLE_CONFIDENCE:g}, as in the literature. "
    "*White box* is the best of the attacks on released gradients and rows, *black box* looks at the losses of the "
    "canaries under the final model alone (of gradient canaries, whose losses are linear: at the final weights in their "
    "direction). *If Gaussian DP* is the white-box bound by the analysis of Mahloujifar, Melis and "
    "Chaudhuri (2024), which holds for trainings that are Gaussian DP, as compositions of many Gaussian steps nearly are. "
    "*Ideal* is the mean of theorem 5.2's bound for an attacker who sees one Gaussian release per canary that spends the whole "
    "epsilon on it: no audit by that theorem with so many canaries can be expected to show more for Gaussian noise. One training "
    "scatters about its own mean. The figure to compare with is that of the paper's introduction: a white-box bound "
    "of 1.8 at a theoretical epsilon of 4, DP-SGD on CIFAR-10 with a WideResNet; here it is the row of the gradient canaries at "
    "epsilon 4. A larger delta would show more (at 1e-5 the ideal is 1.7), but for the bounds above, which hold together, it "
    "costs more than their share of the error."
)


def _attacks(findings: Iterable[Finding], seed: int | None) -> str:
    lines = [
        "| audited | claimed epsilon | white box: epsilon ≥ | if Gaussian DP | black box: epsilon ≥ | ideal | canaries |",
        "|---|---|---|---|---|---|---|",
    ]
    stream, known = NoiseSource(seed).noise, dict[tuple[float, int], float]()
    for each in findings:
        white = [result for name, result in each.attacks.items() if name != "loss"]
        canaries = each.attacks["loss"].canaries
        epsilon, delta = round(each.claim.epsilon, 2), each.claim.delta
        if (epsilon, canaries) not in known:
            known[epsilon, canaries] = ideal_bound(
                epsilon, delta, canaries, confidence=SINGLE_CONFIDENCE, stream=stream
            )
        lines.append(
            f"| {each.name} | {each.claim.epsilon:.2f} | {max(result.lower_bound for result in white):.2f} | "
            f"{max(result.gaussian_lower_bound for result in white):.2f} | {each.attacks['loss'].lower_bound:.2f} | "
            f"{known[epsilon, canaries]:.2f} | {canaries:,} |"
        )
    return "\n".join(lines)

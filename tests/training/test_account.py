"""An account keeps what a statement needs, through a file and beside other accounts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from sparsedp.accounting import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, ZERO_OUT
from sparsedp.training.account import Account, merge_accounts, released

STEP = PoissonSampledDpEvent(float(np.nextafter(0.1, 1.0)), GaussianDpEvent(1 / 3))
PRIVATE = Account(((GaussianDpEvent(5.0), 1), (STEP, 7)), final_model_only=True)
SEEDED = Account(((STEP, 2),), faults=("seeded",), notes=("a note",))


def test_an_account_goes_into_plain_values_and_back_to_the_last_digit() -> None:
    for account in (PRIVATE, SEEDED):
        assert Account.from_state_dict(json.loads(json.dumps(account.state_dict()))) == account


def test_several_runs_are_one_account_with_all_their_faults() -> None:
    whole = merge_accounts([PRIVATE, SEEDED, SEEDED])
    assert whole.events == (*PRIVATE.events, *SEEDED.events, *SEEDED.events)
    assert whole.faults == ("seeded",)
    assert whole.notes == ("a note",)
    assert not whole.final_model_only


def test_the_order_of_runs_hides_no_fault_and_no_adjacency() -> None:
    fixed = replace(PRIVATE, adjacency=ZERO_OUT)
    for accounts in ([PRIVATE, SEEDED, fixed], [fixed, PRIVATE, SEEDED], [SEEDED, fixed, PRIVATE]):
        whole = merge_accounts(accounts)
        assert whole.faults == ("seeded",)
        assert whole.notes == ("a note",)
        assert whole.adjacency == ZERO_OUT
    assert merge_accounts([PRIVATE, SEEDED]).adjacency == ADD_OR_REMOVE_ONE


def test_what_was_released_is_the_most_that_any_run_showed() -> None:
    assert released([PRIVATE]) == "the final model only"
    assert released([SEEDED]) == "the model after every step"
    assert released([PRIVATE, SEEDED]).startswith("the model after every step; of runs with lazy noise")


def test_an_account_claims_nothing_that_it_was_not_given() -> None:
    plain = Account(((GaussianDpEvent(1.0), 2),))
    assert (plain.faults, plain.notes, plain.final_model_only, plain.adjacency) == (
        (),
        (),
        False,
        "add-or-remove-one",
    )
    assert Account.from_state_dict(plain.state_dict()) == plain
    other = Account(((GaussianDpEvent(1.0), 2),), ("fault",), ("note",), True, "zero-out")
    assert Account.from_state_dict(other.state_dict()) == other

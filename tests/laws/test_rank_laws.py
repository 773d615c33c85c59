"""Law of every method: clients that are dealt among processes come to what they come to in one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.methods import METHODS
from pacbayes_fl.results.rounds import RoundRecord, to_line
from tests.forked import fork
from tests.laws.cases import ALL, LABELLED, SEED, Case, assert_close, identified, labels_only
from tests.ranked import together

EXACT = 1e-12
FORMS = ("toy", "pac-pfl-minibatch", "pfedbayes-moments", "fedcfl-apart")
FORMS += ("sfedbayes-moments-rows", "bpfed-moments-rows")
CASES = {
    f"{case}-{d}": (case, d)
    for case in (*ALL, *(one for one in LABELLED if labels_only(METHODS.get(one.name, METHODS["fedavg"]))))
    for d in case.dimensions[:1]
    if case.name in (*METHODS, *FORMS)
}


Told = tuple[dict[str, float], str]


def told(record: RoundRecord) -> Told:
    """Return the numbers of a round, and everything else of its record but lengths of steps."""
    numbers = {name: value for name, value in record.values.items() if name != "seconds"}
    return numbers, to_line(replace(record, values={}, steps=None))


def played(case: Case, d: int, ranks: Ranks | None) -> tuple[list[Told], FederationState]:
    """Play two rounds of a cohort, in which of two processes one may have nobody."""
    batch = case.federation(d)
    plan = FederationPlan(rounds=2, seed=SEED, noise=case.noise, cohort=batch.clients - 2)
    steps = list(engine.rounds(case.build(d), batch, plan, ranks=ranks))
    return [told(record) for record, _ in steps], steps[-1][1]


def states(case: Case, d: int, state: FederationState, own: list[int]) -> Any:
    return tensors.tree_map(torch.clone, Kept.of(state.kept, case.federation(d).clients).select(own)) if own else {}


def compared(case: Case, d: int, ranks: Ranks) -> str | None:
    """Play a case together, and say at the first process what differs from what it plays alone."""
    sizes = [int(m) for m in case.federation(d).size.tolist()]
    owner = ranks.deal(sizes)
    records, state = played(case, d, ranks)
    own = [k for k in range(len(sizes)) if owner[k] == ranks.rank]
    method, kept = case.build(d), states(case, d, state, own)
    found = ranks.gather((records, tensors.leaves(identified(method, state.server)), tensors.leaves(kept)))
    if not ranks.first:
        return None
    alone, expected = played(case, d, None)
    try:
        for rank, (rounds, server, kept) in enumerate(found):
            assert_close(server, tensors.leaves(identified(method, expected.server)), EXACT)
            if theirs := [k for k in range(len(sizes)) if owner[k] == rank]:
                assert_close(kept, tensors.leaves(states(case, d, expected, theirs)), EXACT)
            for (numbers, rest), (others, same) in zip(rounds, alone, strict=True):
                assert rest == same
                assert numbers == pytest.approx(others, rel=EXACT, abs=EXACT, nan_ok=True)
    except AssertionError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    def work(ranks: Ranks) -> dict[str, str | None]:
        warnings.simplefilter("ignore")
        return {name: compared(*case, ranks) for name, case in CASES.items()}

    folder: Path = tmp_path_factory.mktemp("ranks")
    return together(2, folder, work)[0]


@fork
@pytest.mark.parametrize("name", CASES)
def test_two_processes_come_to_what_one_does(name: str, differences: dict[str, str | None]) -> None:
    assert differences[name] is None, differences[name]

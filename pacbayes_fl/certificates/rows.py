"""Rows of a certificate: those unseen by a client's prior, in units that do not depend on them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch

from pacbayes_fl.bounds import Provenance
from pacbayes_fl.certificates.repeats import Repeats, marks_of, repeats_of
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.uncertifiable import told_by_plan


class BoundRows(NamedTuple):
    """Rows of a group's clients, those of the bound apart from those that the priors know, in the method's units.

    Args:
        state: in which they personalise.
        seen: rows that the prior knows, possibly none.
        rows: of the bound.
        test: rows that nothing has seen.
        prior: where the priors come from.
        independent: whether no client's prior or units depend on another client's rows of the bound, so that averages
            over the pooled rows can be bounded.
        repeats: which of the rows count.
        units: to which the rows were brought, leaves [K, *].
        deployed: state and rows behind the personal models that `predict` uses, where these have not seen the rows and
            are not the priors; None where they are the priors, or have seen the rows.
        predicts: whether a personal model that `predict` uses is fixed before the rows; else the prior is.
    """

    state: FederationState
    seen: ClientBatch
    rows: ClientBatch
    test: ClientBatch
    prior: Provenance
    independent: bool
    repeats: Repeats
    units: Scaling
    deployed: tuple[FederationState, ClientBatch] | None = None
    predicts: bool = False


def bound_rows_of(
    trained: Trained,
    name: str,
    group: ScaledGroup,
    delta: float,
    afresh: bool = False,
    later: ClientBatch | None = None,
) -> BoundRows | None:
    """Split the rows of a group into those that its priors have seen and those of the bound.

    Args:
        trained: the run.
        name: of the group.
        group: its clients.
        delta: probability with which a bound on one of them may fail at least: a private prior is given the guarantee
            that costs such a bound least.
        afresh: let all priors be those of the server, as if the clients had never trained.
        later: further rows of some of its clients, raw, which came after the training; None for none. Those that are
            rows of a test do not count: the run was scored on them, and people look at scores.

    Returns:
        The rows, and the state in which the clients personalise; None where the priors have seen all rows, but for a
        private run: a client's bound can pay for that, an average's cannot, for which the other clients' rows must not
        choose the units either.
    """
    scored = [] if later is None else [each.raw.test for each in trained.groups.values()]
    part, simulated = trained.study.report.certify, trained.study.privacy.randomness == "simulation"
    private = name == "existing" and part.scheme == "none"
    released = trained.replacement(delta) if private else None
    if private and (afresh or group.train.clients < 2 or released is None or not math.isfinite(released.epsilon)):
        return None
    state = state_of(trained.method, trained.state, name, group)
    if name == "existing" and trained.bound_rows is not None:
        device = group.train.x.device
        raw = _joined(trained.bound_rows, later)
        rows, seen, deployed = group.bring(raw.to(device)), group.train, None
        if part.prior == "global" or afresh:
            deployed, seen = (state, seen), none_of(seen)
            state = state_of(trained.method, trained.state, "new", replace(group, train=seen))
        repeats = repeats_of(trained, name, raw, afresh, scored)
        prior = Provenance("split", simulated=simulated)
        return BoundRows(state, seen, rows, group.test, prior, True, repeats, group.used, deployed, True)
    units = _units_of_others(trained, name, group)
    own = replace(group, used=units, inputs=torch.zeros_like(group.inputs))  # an average client's: none of these rows
    raw = _joined(group.raw.train, later)
    rows, test = own.bring(raw), own.bring(group.raw.test)
    repeats = repeats_of(trained, name, raw, afresh, scored)
    if released is not None:  # every prior is the server's, which it has released
        state = state_of(trained.method, trained.state, "new", replace(group, train=none_of(rows)))
        prior = Provenance("client-level DP", *released, simulated=simulated)
        return BoundRows(state, none_of(rows), rows, test, prior, False, repeats, units)
    prior = Provenance("disjoint clients" if name == "new" else "other clients", simulated=simulated)
    return BoundRows(state, none_of(rows), rows, test, prior, name == "new", repeats, units)


def _joined(rows: ClientBatch, later: ClientBatch | None) -> ClientBatch:
    return rows if later is None else rows.extend(later.to(rows.x.device))


def told_by_all(trained: Trained, prior: Provenance) -> tuple[str, ...]:
    """Reasons why priors that were trained in folds know something of the folds without them.

    One run of a fold depends on its clients alone, unless what all clients sent decided something for all folds. Of a
    run whose rates were never halved they are what they would be without anybody watching over them.

    Args:
        trained: a run.
        prior: of a group.

    Returns:
        The reasons; none where the priors are of no folds.
    """
    if prior.source != "other clients":
        return ()
    reasons = [*told_by_plan(trained.study)]
    if trained.state.watch.halved:
        what = "learning rates were halved in every fold after a round that diverged for all clients together, those of"
        reasons.append(f"{what} the bound among them (run with lower rates from the start)")
    if (last := trained.state.round) < (planned := trained.study.plan.rounds):
        what = (
            f"all folds ended after round {last} of {planned}, which may have been chosen by all clients, those of the"
        )
        reasons.append(f"{what} bound among them (as many rounds as were planned)")
    return tuple(reasons)


def none_of(batch: ClientBatch) -> ClientBatch:
    """Give the clients of a batch without any rows.

    Args:
        batch: any rows.

    Returns:
        The same clients, one row of padding each.
    """
    return replace(
        batch,
        x=torch.zeros_like(batch.x[:, :1]),
        y=torch.zeros_like(batch.y[:, :1]),
        mask=torch.zeros_like(batch.mask[:, :1]),
    )


def _units_of_others(trained: Trained, name: str, group: ScaledGroup) -> Scaling:
    """Scale clients by the average units of their priors' training clients, independently of their own rows."""
    known, shared = trained.groups["existing"].used, group.shared  # pooled moments are of the priors' rows alone
    if name == "existing":
        fold = torch.from_numpy(marks_of(trained, group.train)).to(group.train.x.device)
        other_fold = (fold.unsqueeze(0) != fold.unsqueeze(1)).to(known.y_mean.dtype)  # [K, K]
        share = other_fold / other_fold.sum(1, keepdim=True)
        return shared.impose(Scaling(*(torch.tensordot(share, leaf, dims=1) for leaf in known)))
    average = Scaling(*(leaf.expand(group.train.clients, *leaf.shape[1:]) for leaf in known.average()))
    return shared.impose(average)

"""Seconds and memory of a round, from a few timed calls on this machine; nothing is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import counted
from pacbayes_fl.federation import federation_state
from pacbayes_fl.federation.client_calls import cut_calls, parts, prepared
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Noise
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.rows.held_rows import TrainingHistory
from pacbayes_fl.study.search import held_out
from pacbayes_fl.tensors import AnyTree

_FIRST: Final = 64  # rows to which clients are cut at first
_CLIENTS: Final = 24  # that are timed
_POWERS: Final = (0, 1, 2, 3)


class Estimate(NamedTuple):
    """What a round costs.

    Args:
        seconds: of a round, or where the method has none, of the fit of all clients.
        bytes: that the largest client's call needs at least.
        rounds: of the study; None where held-out rows choose them.
        timed: rows to which clients were cut in the largest call that was timed.
        largest: rows of the largest client.
    """

    seconds: float
    bytes: int
    rounds: int | None
    timed: int
    largest: int

    def __str__(self) -> str:
        """Say it in words."""
        size = f"{self.bytes / 2**30:.3g} GiB" if self.bytes >= 2**30 else f"{-(-self.bytes // 2**20)} MiB"
        whole = ""
        if self.rounds is not None and self.rounds > 1:
            whole = f", {_said(self.rounds * self.seconds)} for {counted(self.rounds, 'round')}"
        how = f"calls of up to {counted(self.timed, 'row')} a client were timed"
        return f"about {_said(self.seconds)} a round{whole}; {size} for the largest client ({how})"


def _said(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} seconds"


class Ready(NamedTuple):
    """A study that could be trained on its data.

    Args:
        study: with the first candidate of everything that it leaves open.
        method: the algorithm.
        groups: clients by group.
    """

    study: Study
    method: AnyMethod
    groups: Mapping[str, ScaledGroup]


def ready(study: Study, dataset: tables.Dataset) -> Ready:
    """Do what a run does before it trains or tries anything.

    Args:
        study: what would be run.
        dataset: its data.

    Returns:
        What a run would train.

    Raises:
        PacBayesFLError: when the study cannot be run on these data.
    """
    division = held_rows.divide(study, dataset)
    history = TrainingHistory().extended(study, dataset, division.dataset)
    if study.held_out:
        held_rows.rows_for_tuning(study, division)  # or refuse, where all are certified
        study = held_out.first(study)
    method, groups = prepare(study, division.dataset, history.fold_of(dataset.groups["existing"].train))
    return Ready(study, method, groups)


def estimate(study: Study, dataset: tables.Dataset, budget: float = 4.0) -> Estimate | None:
    """Time the clients' half of a round on few rows, and extrapolate to all of theirs.

    Clients are cut to n = 64, 128, 256, ... rows while the next call is likely to stay within the budget. The times are
    fitted by T(n) = sum_j c_j sum_k min(m_k, n)^j with c_j >= 0 and j = 0 ... 3, relative errors weighing alike: exact
    Gaussian processes are cubic in the rows, inducing points linear, and minibatches constant.

    Args:
        study: what would be run.
        dataset: its data.
        budget: seconds that the timing may take, roughly.

    Returns:
        The estimate; None of a method whose server is given all rows, where clients do nothing.

    Raises:
        PacBayesFLError: when the study cannot be run on these data.
    """
    open_rounds = any(one.option == "rounds" for one in study.held_out)
    study, method, groups = ready(study, dataset)
    if not method.federated:
        return None
    clients = prepared(method, groups["existing"].train)
    sizes = [int(m) for m in clients.size.tolist()]
    order = sorted(range(len(sizes)), key=lambda k: sizes[k])
    chosen = [order[round(at)] for at in np.linspace(0, len(order) - 1, min(len(order), _CLIENTS))]
    batch = clients.select(torch.tensor(chosen))
    message = method.broadcast(federation_state.start(method, batch, study.plan).server)
    largest, cuts, seconds = max(sizes), list[int](), list[float]()
    n, left = min(_FIRST, largest), budget
    while True:
        taken = _seconds(study, method, message, batch, [sizes[k] for k in chosen], n)
        cuts, seconds, left = [*cuts, n], [*seconds, taken], left - 2 * taken
        growth = 4.0 if len(seconds) < 2 else max(2.0, 1.5 * seconds[-1] / seconds[-2])
        if n == largest or 2 * taken * growth > left:
            break
        n = min(2 * n, largest)
    costs = _costs(cuts, seconds, [sizes[k] for k in chosen])
    every = np.array([sum(m**j for m in sizes) for j in _POWERS], dtype=np.float64)
    share = min(1.0, (study.federation.cohort or len(sizes)) / len(sizes))
    needed = (4 if study.model.single else 8) * method.footprint(largest)
    rounds = None if open_rounds else study.plan.rounds if study.recipe.rounds else 1
    return Estimate(float(costs @ every) * share, needed, rounds, cuts[-1], largest)


def _seconds(
    study: Study, method: AnyMethod, message: AnyTree, batch: ClientBatch, sizes: Sequence[int], n: int
) -> float:
    """Time the calls of a round of clients that are cut to n rows: the faster of two."""
    cut = batch.trim(min(n, batch.mask.shape[1]))
    known = [min(m, n) for m in sizes]
    result = []
    for _ in range(2):  # the first may load code
        begun = time.perf_counter()
        calls = parts(method, known, list(range(len(known))), study.plan, cut.x.device)
        for _, rows in cut_calls(cut, known, calls):
            noise = Noise(study.plan.seed, 1, rows.ids, rows.x.device, study.plan.noise)
            state = method.init_clients(message, rows)
            if study.recipe.rounds:
                method.client(message, state, rows, noise)
            else:
                method.personalise(message, state, rows, noise)
        if cut.x.is_cuda:
            torch.cuda.synchronize()
        result.append(time.perf_counter() - begun)
    return min(result)


def _costs(cuts: Sequence[int], seconds: Sequence[float], sizes: Sequence[int]) -> np.ndarray:
    """Fit c_j >= 0, seconds per client and row^j."""
    sums = np.array([[sum(min(m, n) ** j for m in sizes) for j in _POWERS] for n in cuts], dtype=np.float64)
    taken = np.array(seconds)
    scale = sums[-1]  # so that all columns are of the order of 1
    costs, _ = nnls(sums / scale / taken[:, None], np.ones(len(taken)))
    return np.asarray(costs / scale)

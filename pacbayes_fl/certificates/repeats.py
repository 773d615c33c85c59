"""Repeated rows under certificates: their clusters, the effective number of rows, and their largest loss.

A row of the bound that stands elsewhere in what the prior saw, or twice among the rows of the bound, may be a copy,
made when tables were joined, resampled or augmented, or an honest draw of a distribution with few values. Nobody can
tell from the rows, so a bound has to hold either way, and for any mixture of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.bounds import BoundedLoss
from pacbayes_fl.data import twins
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.tempered import untempered

if TYPE_CHECKING:
    from pacbayes_fl.study.run import Trained


_ANY = -1  # a mark that no client has: every row that was trained on was seen


class Repeats(NamedTuple):
    """Which rows of a bound are one row, and which the prior may have seen.

    Args:
        cluster: of every row [K, N], int64: rows with the same number of the same client are one row or near-twins; -1
            on rows that the client's prior has seen, -2 on padding.
        shared: whether a row stands among the rows of two clients of the group.
    """

    cluster: Tensor
    shared: bool

    @property
    def n(self) -> Tensor:
        """Rows that count [K], float64: one of every cluster that the prior has not seen."""
        return self.cluster.amax(1).clamp_min(-1).double() + 1.0

    @property
    def left_out(self) -> Tensor:
        """Rows that do not count [K], float64."""
        return (self.cluster > -2).sum(1).double() - self.n

    def select(self, index: Tensor, rows: int) -> Repeats:
        """Take clients.

        Args:
            index: positions [k].
            rows: N of the batch that they are in now.

        Returns:
            The repeats of their rows.
        """
        return Repeats(self.cluster[index.to(self.cluster.device), :rows], self.shared)

    def risk(self, losses: Tensor) -> Tensor:
        """Average losses over rows, of whatever rows may be the client's own draws.

            max_T (sum_{i in T} l_i) / |T|  over sets T with at least one row of every cluster that counts

        Let S be those rows that are independent draws which the prior has not seen; whatever else repeats them or is
        repeated from elsewhere. S holds a row of every cluster that counts, so that |S| >= n, and its risk is one of
        those under the maximum. Bounds grow with the risk and fall with n: one from the maximum and n is no smaller
        than that from S, which holds. So it is when all rows are honest draws, when all repeats are copies, and
        between. Where rows are drawn hypotheses' averages, the maximum of estimates is no less than the estimate of
        any one S.

        Args:
            losses: of every row, averaged over hypotheses [K, *, N], in the unit of the loss.

        Returns:
            [K, *], in the unit of the loss; NaN for a client of which no row counts.
        """
        cluster, n = self.cluster.to(losses.device), self.n.to(losses.device)
        real = (cluster > -2).view(len(cluster), *[1] * (losses.dim() - 2), -1)
        total = torch.where(real, losses.double(), 0.0).sum(-1)
        result = total / torch.where(n > 0, n, torch.nan).view(-1, *[1] * (total.dim() - 1))
        for k in ((self.left_out > 0) & (self.n > 0)).nonzero().flatten().tolist():
            own = cluster[k] > -2
            result[k] = _largest(losses[k][..., own].double(), cluster[k][own], int(n[k]))
        return result

    def ordered(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Put the largest loss of every cluster that counts first, for bounds on a fixed predictor.

        The rows that are own draws which nothing has seen hold one of every such cluster, and maybe more. Their n
        losses that matter most are at most the first n here, and any others are among those that follow.

        Args:
            losses: of every row [K, N], in the unit of the loss.

        Returns:
            Losses [K, N], sorted within both parts and with 0 on padding, and how many follow the first n [K].
        """
        result = torch.zeros(losses.shape, dtype=torch.float64, device=losses.device)
        for k, cluster in enumerate(self.cluster.to(losses.device)):
            own, number = losses[k][cluster > -2].double(), cluster[cluster > -2]
            falling, order = own.sort(descending=True)
            number, place = number[order], torch.arange(len(own), device=losses.device)
            first = torch.full((len(own) + 2,), len(own), device=losses.device)
            first = first.scatter_reduce(0, number + 2, place, "amin")  # the largest of its cluster
            needed = (first[number + 2] == place) & (number >= 0)
            result[k, : len(own)] = torch.cat((falling[needed], falling[~needed]))
        return result, self.left_out.to(losses.device)


def _largest(losses: Tensor, cluster: Tensor, n: int) -> Tensor:
    """Maximise the mean of losses [*, m] over sets that have a row of each of n clusters [m]: [*]."""
    falling, order = losses.sort(-1, descending=True)
    number = cluster[order]
    place = torch.arange(losses.shape[-1], device=losses.device).expand(number.shape)
    first = torch.full((*number.shape[:-1], n + 1), losses.shape[-1], device=losses.device)
    number = torch.where(number < 0, n, number)
    first = first.scatter_reduce(-1, number, place, "amin")
    needed = (first.gather(-1, number) == place) & (number < n)  # the largest of its cluster
    base = torch.where(needed, falling, 0.0).sum(-1, keepdim=True)
    more = torch.where(needed, 0.0, falling).cumsum(-1)
    means = (base + more) / (n + (~needed).cumsum(-1))
    return torch.maximum(means.amax(-1), (base / n).squeeze(-1))


def largest_variance(risk: Tensor, loss: BoundedLoss) -> Tensor:
    """Largest variance of losses of a mean that is at most the risk: of such as lie at both ends of the range.

    Args:
        risk: the largest on any rows that may be own draws [*], in the unit of the loss.
        loss: gives the range.

    Returns:
        [*], in the squared unit of the loss: no less than the variance on any of these rows.
    """
    mean = risk.clamp_max(0.5 * (loss.low + loss.high))
    return (mean - loss.low) * (loss.high - mean)


def repeats_of(
    trained: Trained, name: str, rows: ClientBatch, independent: bool = False, scored: Sequence[ClientBatch] = ()
) -> Repeats:
    """Compare the rows of a bound with each other and with all that the clients' priors were trained on or chosen by.

    Validation rows count as seen wherever there are some: options of a run, and people, choose by them. Rows are
    compared in the data's own units, whoever has them and under whichever name: as features and target, and as one
    where no column differs by more than `report.certify.twins` of its spread.

    Args:
        trained: the run.
        name: of the group.
        rows: of the bound, raw, x [K, N, *feature].
        independent: whether the bound takes the clients' rows as independent: a row that two clients have
            counts for neither.
        scored: rows, raw, that the run was scored on, where some of the bound's may be among them: they count as seen.

    Returns:
        The repeats of the rows.
    """
    part = trained.study.report.certify
    every = [group.train for group in trained.dataset.groups.values()]
    width = part.twins * twins.spread(every)
    group = trained.groups["existing"].raw
    known = group.train
    (own, owner), (seen, source_owner) = twins.stacked(rows), twins.together((known, group.validation))
    looked_at = [twins.stacked(batch)[0] for batch in scored]
    label = twins.clusters(np.concatenate((own, seen, *looked_at)), width)
    label, source, looked_at_label = np.split(label, (len(own), len(own) + len(seen)))
    marks = marks_of(trained, known)
    own_mark = np.full(rows.clients, _ANY) if name == "new" or part.scheme == "split" else marks
    saw = _foreign(label, own_mark[owner], source, marks[source_owner])
    for mark, there in _departed(trained, own, marks):
        saw |= (own_mark[owner] != mark) & there
    saw |= np.isin(label, looked_at_label)
    _, pair = np.unique(np.stack((owner, label)), axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    saw = np.isin(pair, pair[saw])  # a twin of a row that was seen is as good as seen
    several = np.isin(label, _of_several(label, owner))
    number = _numbered(pair, owner, ~(saw | several) if independent else ~saw)
    cluster = torch.full(rows.mask.shape, -2, dtype=torch.int64)
    cluster[rows.mask.cpu()] = torch.from_numpy(number)
    return Repeats(cluster, bool(several.any()))


def marks_of(trained: Trained, known: ClientBatch) -> Array:
    """Mark every client of the training: priors have seen the rows of those with another mark than their own.

    Args:
        trained: after its last round.
        known: its clients.

    Returns:
        The folds of a training in folds, else a mark of its own for every client [K].
    """
    return np.array(untempered(trained.method).prior_groups(known.ids))


def _departed(trained: Trained, own: Array, marks: Array) -> Iterator[tuple[int, Array]]:
    """Say of every client that took part and has left its mark, and which rows of the bound [R] it had."""
    here = trained.groups["existing"].raw.train.names
    memory = trained.history
    gone = [name for name in memory.clients if name not in here]
    if not gone or not memory.width:
        return
    cells = twins.cells(own, np.array(memory.width), memory.salt, memory.grids)
    for place, name in enumerate(gone):
        mark = memory.fold.get(name, int(marks.max()) + 1 + place)
        yield mark, np.asarray(np.isin(cells, memory.clients[name].cells).any(1))


def _foreign(label: Array, own_mark: Array, source: Array, marks: Array) -> Array:
    """Rows [R] whose cluster has a row of another mark, bool."""
    size = 1 + int(max(label.max(initial=-1), source.max(initial=-1)))
    lowest, highest = np.full(size, np.iinfo(np.int64).max), np.full(size, -2)
    np.minimum.at(lowest, source, marks)
    np.maximum.at(highest, source, marks)
    return np.asarray((highest[label] > -2) & ((lowest[label] != own_mark) | (highest[label] != own_mark)))


def _of_several(label: Array, owner: Array) -> Array:
    """Take the clusters that rows of several clients are in."""
    pairs = np.unique(np.stack((label, owner)), axis=1)
    result, counts = np.unique(pairs[0], return_counts=True)
    return np.asarray(result[counts > 1])


def _numbered(pair: Array, owner: Array, counts: Array) -> Array:
    """Number the clusters that count from 0 within each client [R]; -1 where they do not."""
    number = np.full(len(pair), -1, dtype=np.int64)
    result, place = np.unique(pair[counts], return_inverse=True)  # pairs of one client follow each other
    owners = np.zeros(len(result), dtype=np.int64)
    owners[place] = owner[counts]
    number[counts] = (np.arange(len(result)) - np.searchsorted(owners, owners))[place]
    return number

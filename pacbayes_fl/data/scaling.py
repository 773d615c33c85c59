"""Standardisation by client, fitted on training rows alone (PAC-PFL appendix 8.5; the published generator's rule).

A column may also be scaled across clients, by moments that they share or that theirs are shrunk towards, or be left in
its own units.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.far_clients import beyond, say_far, without_far_by
from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.data.lone_values import say_lone
from pacbayes_fl.data.moments import Moments, client_moments, combined, moments_of, pooled_moments, standardised
from pacbayes_fl.data.row_counts import counted_rows
from pacbayes_fl.data.shrinkage import Population, fit_population, shrunk
from pacbayes_fl.data.summaries import SummaryScale
from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import caller_stacklevel, listed

ColumnScale = Literal["client", "shrunk", "pooled", "none"]
"""How a column is scaled: by each client's own moments, by these shrunk towards the federation's (empirical Bayes), by
those of all clients' rows together, or not at all."""

FEDERATED: Final[tuple[ColumnScale, ...]] = ("shrunk", "pooled")
"""Those that take moments of all clients' rows."""

_SHOWN: Final = 5  # names in a warning


class Scaling(NamedTuple):
    """Affine maps per client: scaled = (raw - mean) / std. Labels, which are integers, stay as they are.

    Args:
        x_mean: [K, *feature], in units of the features.
        x_std: [K, *feature], positive.
        y_mean: [K], in units of y; 0 for labels.
        y_std: [K], positive; 1 for labels.
    """

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor

    def apply(self, batch: ClientBatch) -> ClientBatch:
        """Scale a batch of the same clients in the same order; padding stays zero.

        Args:
            batch: raw rows, x [K, N, *feature], y [K, N].

        Returns:
            The scaled batch.
        """
        x = standardised(batch.x, self.x_mean.unsqueeze(1), self.x_std.unsqueeze(1))
        x = torch.where(batch.mask.view(*batch.mask.shape, *[1] * (x.dim() - 2)), x, 0.0)
        if not batch.y.is_floating_point():
            return replace(batch, x=x)
        y = standardised(batch.y, self.y_mean.unsqueeze(1), self.y_std.unsqueeze(1))
        return replace(batch, x=x, y=torch.where(batch.mask, y, 0.0))

    def replaced(self, columns: Tensor, mean: Tensor, std: Tensor) -> Scaling:
        """Replace the maps of some columns.

        Args:
            columns: which of the d features, and the target last [d + 1] or, by client, [K, d + 1] bool.
            mean: [d + 1] or, by client, [K, d + 1], in units of each column.
            std: likewise [*, d + 1], positive.

        Returns:
            The maps with these means and standard deviations there.
        """
        mean, std = mean.to(self.x_mean), std.to(self.x_std)
        return Scaling(
            torch.where(columns[..., :-1], mean[..., :-1], self.x_mean),
            torch.where(columns[..., :-1], std[..., :-1], self.x_std),
            torch.where(columns[..., -1], mean[..., -1].to(self.y_mean), self.y_mean),
            torch.where(columns[..., -1], std[..., -1].to(self.y_std), self.y_std),
        )

    def average(self) -> Scaling:
        """Average the clients' maps, for whoever has no rows to take its own from: leaves [1, *]."""
        return Scaling(*(leaf.mean(0, keepdim=True) for leaf in self))


class Shared(NamedTuple):
    """The part of scaling common to all clients, so that a client computes its own without others' rows.

    Args:
        kinds: of the d features, and of the target last.
        mean: of pooled and shrunk columns [d + 1], in units of each column; 0 elsewhere.
        std: of pooled and shrunk columns [d + 1], positive; 1 elsewhere.
        average: of the maps that the clients of the training have [1, *], for one without rows; None where nobody may
            know it.
        linear: ridge regression of all clients' scaled rows, where a study's learning starts there.
        between: standard deviation of clients' means in shrunk columns [d + 1], in units of each column; 0 elsewhere.
        spread: standard deviation of the logarithms of clients' scales in shrunk columns [d + 1]; 0 elsewhere.
        summaries: scale of the clients' summaries, where these are inputs.
        bounds: where targets end, in units of y; None without any.
        transform: of targets before they are scaled; None without any.
    """

    kinds: tuple[ColumnScale, ...]
    mean: Tensor
    std: Tensor
    average: Scaling | None = None
    linear: LinearStart | None = None
    between: Tensor | None = None
    spread: Tensor | None = None
    summaries: SummaryScale | None = None
    bounds: Bounds | None = None
    transform: Transform | None = None

    def impose(self, own: Scaling) -> Scaling:
        """Replace the columns that are not scaled by client, knowing nothing of the clients' rows.

        Args:
            own: maps of K clients, by their own rows or by others'.

        Returns:
            The maps with pooled and shrunk columns by the federation's moments, those that are left alone at 0 and 1.
        """
        common = torch.tensor([kind != "client" for kind in self.kinds], device=own.x_mean.device)
        return own.replaced(common, self.mean, self.std) if bool(common.any()) else own

    def learned(self, batch: ClientBatch) -> ClientBatch:
        """Give rows the targets that a method learns, before they are scaled.

        Args:
            batch: rows in the data's own units.

        Returns:
            The same rows, with transformed targets where there is a transform.
        """
        return batch if self.transform is None else self.transform.apply(batch)

    def used(self, own: Scaling, batch: ClientBatch) -> Scaling:
        """Replace the columns that are not scaled by client, those that are shrunk by use of the clients' rows.

        Args:
            own: maps of K clients by their rows, see `fit`.
            batch: these rows.

        Returns:
            The maps by which the clients' rows are brought into a method's units; a client's own where a column is none
            of the federation's, as in another unit (`far_clients.beyond`).
        """
        result, federated = self.impose(own), self.federated
        if batch.x.dim() > 3 or not bool(federated.any()):
            return result
        moments, population = client_moments(batch), self.population
        alone, (mean, std) = beyond(moments, population), shrunk(moments, batch.size, population)
        mean, std = torch.where(alone, moments.mean, mean), torch.where(alone, moments.std, std)
        drawn = torch.tensor([kind == "shrunk" for kind in self.kinds], device=mean.device)
        return result.replaced(federated.to(mean.device) & (drawn | alone), mean, std)

    @property
    def federated(self) -> Tensor:
        """Which columns are scaled by moments of all clients' rows [d + 1] bool, on the CPU."""
        return torch.tensor([kind in FEDERATED for kind in self.kinds])

    @property
    def population(self) -> Population:
        """Moments of all clients' rows, and how far those of clients are from them; of use where `federated`."""
        zero = torch.zeros_like(self.std)
        return Population(
            self.mean, self.std, *(zero if leaf is None else leaf for leaf in (self.between, self.spread))
        )


def settle(
    batch: ClientBatch,
    asked: Sequence[ColumnScale | None],
    columns: Sequence[str] = (),
    alone: str = "",
    elsewhere: bool = False,
) -> Shared:
    """Determine how every column is scaled, and compute the moments of columns scaled across clients.

    A column that is left open is scaled by client, unless it is constant inside all clients and differs between them,
    such as an orientation or a capacity: a client's own moments would make 0 of it everywhere. Clients that are far
    from all others in such columns are left out of what is common (`data.far_clients`), and a warning names them; one
    that repeats its rows counts as fewer (`data.row_counts`).

    Args:
        batch: training rows of all clients, x [K, N, d], y [K, N].
        asked: kind of every feature and, last, of the target [d + 1]; None leaves it open. Where "shrunk" is asked of a
            column that varies inside no client, it is scaled across clients.
        columns: names of the d features and the target.
        alone: why no client may learn anything of others' rows, in words; then an open column is scaled by client, and
            a warning says which ones lose what they hold.
        elsewhere: whether there are other clients, of whose rows nothing is known here.

    Returns:
        What the maps have in common, without an average.
    """
    return settle_moments(_RowMoments(batch), asked, columns, alone, elsewhere)


class KnownMoments(Protocol):
    """What is known of clients' columns, from their rows or from what they have sent."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the K clients."""

    @property
    def size(self) -> Tensor:
        """Their rows [K]."""

    @property
    def counted(self) -> Tensor:
        """How many rows each counts as [K]; see `data.row_counts`."""

    @property
    def labels(self) -> bool:
        """Whether targets are labels."""

    @property
    def inside(self) -> Moments:
        """Moments of the columns of every client [K, d + 1]."""

    @property
    def whole(self) -> Moments:
        """Moments of all rows together [1, d + 1]."""

    def select(self, index: Tensor) -> KnownMoments:
        """Leave the other clients out.

        Args:
            index: positions [*].
        """


class _RowMoments:
    """Moments of rows that are at hand.

    Args:
        batch: rows of K clients.
    """

    def __init__(self, batch: ClientBatch) -> None:
        """Take the rows."""
        self._batch = batch
        self.names, self.size, self.labels = batch.names, batch.size, not batch.y.is_floating_point()

    @cached_property
    def counted(self) -> Tensor:
        """How many rows each client counts as."""
        return counted_rows(self._batch)

    @cached_property
    def inside(self) -> Moments:
        """Moments of the columns of every client."""
        return client_moments(self._batch)

    @cached_property
    def whole(self) -> Moments:
        """Moments of all rows together."""
        if bool((self.counted < self.size).any()):
            return combined(self.inside, self.counted)
        return pooled_moments(self._batch)

    def select(self, index: Tensor) -> _RowMoments:
        """Leave the other clients out."""
        return _RowMoments(self._batch.select(index))


def settle_moments(
    known: KnownMoments,
    asked: Sequence[ColumnScale | None],
    columns: Sequence[str] = (),
    alone: str = "",
    elsewhere: bool = False,
) -> Shared:
    """Determine how every column is scaled, as `settle`, from what is known of the clients' columns.

    Args:
        known: of all clients.
        asked: as `settle`.
        columns: as `settle`.
        alone: as `settle`.
        elsewhere: as `settle`.

    Returns:
        What the maps have in common, without an average.
    """
    names = columns or [*(str(j) for j in range(len(asked) - 1)), "y"]
    inside = known.inside
    across = [kind in FEDERATED or (kind is None and one) for kind, one in zip(asked, inside.flat.all(0), strict=True)]
    if not alone:
        said = "in no common units, column_scale 'none', can move what all learn"
        say_far(inside, known.size > 0, known.names, names, [kind == "none" for kind in asked], said)
    if not alone and any(across):
        near = without_far_by(inside, known.size > 0, known.names, names, across, "the moments of all clients")
        known = known if near is None else known.select(near)
        inside = known.inside
    flat_inside = inside.flat.all(0) & bool((known.size > 1).any())  # of a single row every column is constant
    whole, device = known.whole, inside.mean.device
    between = (flat_inside & ~whole.flat[0]).tolist()
    if alone:
        lost = flat_inside.tolist() if elsewhere else between
        at = [j for j, kind in enumerate(asked) if kind is None and lost[j]]
        _say_lost([names[j] for j in at], [between[j] for j in at], alone)
    kinds: list[ColumnScale] = []
    for kind, between_clients in zip(asked, between, strict=True):
        kinds.append(kind or ("pooled" if between_clients and not alone else "client"))
    constant = inside.flat.all(0).tolist()  # in every client: its scale is that between them
    kinds = ["pooled" if kind == "shrunk" and flat else kind for kind, flat in zip(kinds, constant, strict=True)]
    if known.labels:
        kinds[-1] = "none"
    pooled = torch.tensor([kind == "pooled" for kind in kinds], device=device)
    if still := [name for name, one in zip(names, (pooled & whole.flat[0]).tolist(), strict=True) if one]:
        vary = "does" if len(still) == 1 else "do"
        text = f"{listed(still)} {vary} not vary over all clients: left unscaled (std := 1)"
        warnings.warn(text, stacklevel=caller_stacklevel())
    mean, std = torch.where(pooled, whole.mean[0], 0.0), torch.where(pooled & ~whole.flat[0], whole.std[0], 1.0)
    result = Shared(tuple(kinds), mean, std)
    if "shrunk" not in kinds:
        return result
    towards = torch.tensor([kind == "shrunk" for kind in kinds], device=device)
    population = fit_population(inside, known.counted)
    return result._replace(
        mean=torch.where(towards, population.mean, mean),
        std=torch.where(towards, population.std, std),
        between=torch.where(towards, population.between, 0.0),
        spread=torch.where(towards, population.spread, 0.0),
    )


def fit(batch: ClientBatch, shared: Shared | None = None, columns: Sequence[str] = ()) -> Scaling:
    """Fit mean and population standard deviation of every client's features and, where it is no label, of its target.

    A column (or target) that is constant, but for rounding of its largest value, is shifted and not scaled, and
    everything of a client without rows is left as it is; a warning says which columns of whom, and in which a few
    values are far from all others (`data.lone_values`).

    Args:
        batch: training rows, x [K, N, d], y [K, N].
        shared: says which columns are not scaled by client: whether one of these varies inside a client is no news.
        columns: names of the d features, and of the target.

    Returns:
        The maps of its K clients by their own rows, of all columns; see `Shared.used`.
    """
    labels = not batch.y.is_floating_point()
    mean, std, flat = client_moments(batch)
    names = [*columns] or [*(f"column {j}" for j in range(flat.shape[1] - 1)), "targets"]
    own = flat & batch.mask.any(1).unsqueeze(-1)
    if shared is not None:
        own = own & torch.tensor([kind == "client" for kind in shared.kinds], device=own.device)
    _say_constant(batch.names, own.cpu(), names[:-1], labels)
    say_lone(batch, names)
    std = torch.where(flat, 1.0, std)
    return Scaling(mean[:, :-1], std[:, :-1], mean[:, -1], std[:, -1])


def with_targets(units: Scaling, batch: ClientBatch) -> Scaling:
    """Fit the targets of other units anew.

    Args:
        units: maps of K clients, of whatever targets.
        batch: their training rows, y [K, N].

    Returns:
        The maps, with mean and standard deviation of these targets.
    """
    mean, std, flat = by_size(batch, lambda part: moments_of(part.y.unsqueeze(-1), part.mask))
    return units._replace(y_mean=mean[:, 0], y_std=torch.where(flat, 1.0, std)[:, 0])


def _say_lost(names: Sequence[str], differ: Sequence[bool], alone: str) -> None:
    """Warn of open columns that are constant inside clients, by whether these are known to differ."""
    for known, between in ((True, "different between them"), (False, "perhaps different between those of other nodes")):
        if lost := [name for name, one in zip(names, differ, strict=True) if one == known]:
            what = f"{listed(lost)}: constant inside clients and {between}, so that scaling by client makes 0"
            advice = (
                f"{alone}, so they are not scaled across clients (data.column_scale = 'none' keeps their own units)"
            )
            warnings.warn(f"{what}; {advice}", stacklevel=caller_stacklevel())


def _say_constant(clients: Sequence[str], flat: Tensor, columns: Sequence[str], labels: bool) -> None:
    """Warn of the targets and of the features that do not vary [K, d + 1], by the clients in which they do not."""
    if flat[:, -1].any() and not labels:
        names = [name for name, is_flat in zip(clients, flat[:, -1].tolist(), strict=True) if is_flat]
        warnings.warn(
            f"targets of {listed(names)} do not vary: left unscaled (std := 1)", stacklevel=caller_stacklevel()
        )
    alike: dict[tuple[int, ...], list[str]] = {}
    for j in flat[:, :-1].any(0).nonzero().flatten().tolist():
        alike.setdefault(tuple(flat[:, j].nonzero().flatten().tolist()), []).append(columns[j])
    if alike:
        clauses = [
            f"{listed(names)} in {listed([clients[k] for k in where])}"
            if len(where) < len(clients) or len(clients) == 1
            else f"{listed(names)} in every client"
            for where, names in alike.items()
        ]
        text = "; ".join([*clauses[:_SHOWN], *([f"and {len(clauses) - _SHOWN} more"] if len(clauses) > _SHOWN else [])])
        warnings.warn(
            f"features that do not vary tell a client nothing, and become 0: {text}", stacklevel=caller_stacklevel()
        )


def untouched(features: int) -> Shared:
    """Leave every column in its own units.

    Args:
        features: d.

    Returns:
        What clients share then: nothing.
    """
    none: ColumnScale = "none"
    return Shared((none,) * (features + 1), torch.zeros(features + 1), torch.ones(features + 1))


def identity(batch: ClientBatch) -> Scaling:
    """Leave the clients of a batch in their own units.

    Args:
        batch: x [K, N, *feature].

    Returns:
        A scaling that changes nothing.
    """
    shape = (batch.clients, *batch.x.shape[2:])
    zero, one = batch.x.new_zeros(()), batch.x.new_ones(())
    return Scaling(zero.expand(shape), one.expand(shape), zero.expand(batch.clients), one.expand(batch.clients))

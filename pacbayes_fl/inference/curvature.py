"""Generalised Gauss-Newton curvature of many clients' likelihoods, from layer factors.

The definition is `models.weights.jacobian.dense`: a Jacobian entry by entry. Here nothing of its size [N, C, D] is
formed. For B chosen weights of linear layers a product over rows has no factor of the C classes either,

    (J' Lambda J)_{io, i'o'} = sum_n a_ni a_ni' M_n[o, o'],  M_n = V_n' V_n,  V_n = R_n' dF_n [C, U],

one matrix product per unit o. Where C N <= B, the posterior variances are found from a C N x C N matrix instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.weights.jacobian import Jacobian, LayerJacobian, linearise

NUMBERS = 2**25
"""Numbers that the factors of one chunk of rows may hold."""


class SubnetworkPrecision(NamedTuple):
    """Posterior precision of a subnetwork.

    Args:
        chosen: positions of its weights [K, B], in the order of the factor.
        factor: lower Cholesky factor of J' Lambda J + diag(1 / g) [K, B, B].
    """

    chosen: Tensor
    factor: Tensor


class AddedRows(NamedTuple):
    """The Gaussian of a subnetwork after an update with more rows; its mean does not change.

    Args:
        chosen: positions of its weights [K, B], in the order of the factor.
        factor: lower Cholesky factor of the new precision [K, B, B].
        kl: divergence of the new Gaussian from the old one [K], in nats, float64.
    """

    chosen: Tensor
    factor: Tensor
    kl: Tensor


def diagonal_ggn(model: WeightModel, weights: Tensor, batch: ClientBatch) -> Tensor:
    """Diagonal of the generalised Gauss-Newton matrix of every client's negative log likelihood.

    diag(J' Lambda J), summed over rows      (FedSI eq. 11)

    Args:
        model: the likelihood.
        weights: where [K, D].
        batch: the clients' rows.

    Returns:
        [K, D], in nats per squared unit of a weight; 0 where the outputs do not depend on a weight.
    """
    total = torch.zeros_like(weights)
    for jacobian in _chunks(model, weights, batch, 0):
        total += jacobian.squares()
    return total


def marginal_variance(model: WeightModel, weights: Tensor, batch: ClientBatch, index: Tensor, prior: Tensor) -> Tensor:
    """Posterior variances of a subnetwork's weights under the full-covariance Laplace approximation.

    diag (J_S' Lambda J_S + diag(1 / g_S))^-1      (FedSI eqs. 12, 15)

    Args:
        model: the likelihood.
        weights: MAP estimates [K, D].
        batch: the clients' rows.
        index: positions of the subnetwork [K, B].
        prior: variances g of all weights [K, D].

    Returns:
        [K, B], in squared units of a weight; NaN for a client whose precision cannot be factored.
    """
    outputs, _ = _cost(model, weights, batch, 0)
    if batch.mask.shape[1] * outputs > index.shape[1]:
        arranged, factor = precision(model, weights, batch, index, prior)
        result = torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1)
        return torch.zeros_like(weights).scatter(1, arranged, result).gather(1, index)
    parts = []
    for jacobian in _chunks(model, weights, batch, index.shape[1]):
        if _structured(jacobian) and _worth_units(jacobian, batch, index):
            ordered, result = _by_unit(jacobian, index), torch.zeros_like(weights)
            for k, own in enumerate(ordered):
                result[k, own] = _dual_by_units(_chosen(jacobian, k, own), prior[k, own])
            return result.gather(1, index)
        parts.append(jacobian.columns(index).flatten(1, 2))
    return _dual(torch.cat(parts, 1), prior.gather(1, index))


def precision(
    model: WeightModel, weights: Tensor, batch: ClientBatch, index: Tensor, prior: Tensor
) -> SubnetworkPrecision:
    """Factor the posterior precision of a subnetwork under the full-covariance Laplace approximation.

    L L' = J_S' Lambda J_S + diag(1 / g_S)      (FedSI eq. 12)

    Args:
        model: the likelihood.
        weights: MAP estimates [K, D].
        batch: the clients' rows.
        index: positions of the subnetwork [K, B].
        prior: variances g of all weights [K, D].

    Returns:
        The factor, NaN for a client whose precision cannot be factored, and the positions in its order.
    """
    index, total = _subnetwork_ggn(model, weights, batch, index)
    total.diagonal(dim1=-2, dim2=-1).add_(prior.gather(1, index).reciprocal())
    return SubnetworkPrecision(index, _factored(total))


def add_rows(
    model: WeightModel, weights: Tensor, batch: ClientBatch, known: SubnetworkPrecision, more: Tensor, variance: Tensor
) -> AddedRows:
    """Add the curvature of more rows to the precision of weights that were Gaussian already.

    L L' = J_S' Lambda J_S + H,  KL = (tr(H (L L')^-1) - B + ln |L L'| - ln |H|) / 2, the closed form for equal means

    Args:
        model: the likelihood.
        weights: means [K, D].
        batch: the rows that are new.
        known: weights [K, A] that were correlated, and the factor of their block of H.
        more: positions of weights that were correlated with none [K, M].
        variance: of these [K, D], in squared units of a weight.

    Returns:
        Positions of all B = A + M weights, factor and divergence, which is that of the factor as its dtype holds it;
        NaN for a client whose precision cannot be factored.
    """
    index = torch.cat((known.chosen, more), 1)
    variances, block = variance.gather(1, more).double(), known.factor.double()
    before = torch.diag_embed(torch.cat((torch.ones_like(known.chosen), variances.reciprocal()), 1))
    before[:, : block.shape[1], : block.shape[1]] = block @ block.mT
    arranged, total = _subnetwork_ggn(model, weights, batch, index)
    place = torch.zeros_like(weights, dtype=torch.int64)
    place.scatter_(1, index, torch.arange(index.shape[1], device=index.device).expand_as(index))
    order = place.gather(1, arranged)
    before = before.gather(1, order.unsqueeze(2).expand_as(before)).gather(2, order.unsqueeze(1).expand_as(before))
    factor = _factored(before + total).to(weights.dtype)
    after = factor.double()
    spread = (torch.cholesky_inverse(after) * before).sum((-2, -1))
    gained = _log_diagonal(after) - _log_diagonal(block) + 0.5 * variances.log().sum(1)
    return AddedRows(arranged, factor, (0.5 * (spread - index.shape[1]) + gained).clamp_min(0.0))


def _log_diagonal(factor: Tensor) -> Tensor:
    """Half of the log determinants [K] of the factored matrices, from factors [K, B, B]."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _subnetwork_ggn(model: WeightModel, weights: Tensor, batch: ClientBatch, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [K, B] in a convenient order, and the lower triangle of J_S' Lambda J_S [K, B, B] in that order."""
    total = torch.zeros(*index.shape, index.shape[1], dtype=weights.dtype, device=weights.device)
    for jacobian in _chunks(model, weights, batch, index.shape[1]):
        if _structured(jacobian):
            index = _by_unit(jacobian, index)
            for k, (matrix, own) in enumerate(zip(total, index, strict=True)):
                _add_by_units(matrix, _chosen(jacobian, k, own))
        else:
            columns = jacobian.columns(index).flatten(1, 2)
            total.baddbmm_(columns.mT, columns)
    return index, total


def _factored(matrix: Tensor) -> Tensor:
    """Cholesky factors of matrices [K, B, B], of which the lower triangle alone is read; NaN where there is none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    factored: Tensor = factor.masked_fill_((failed > 0)[:, None, None], torch.nan)
    return factored


def _cost(model: WeightModel, weights: Tensor, batch: ClientBatch, chosen: int) -> tuple[int, int]:
    """Look at one row: the number of outputs, and numbers per row of all clients when `chosen` weights are taken."""
    first = batch.rows(torch.zeros(batch.clients, 1, dtype=torch.int64, device=batch.mask.device))
    result = linearise(model, weights, first, batch)
    numbers = result.jacobian.numel()
    if not _structured(result.jacobian):
        numbers += result.outputs.numel() * chosen
    return result.outputs.shape[-1], numbers


def _chunks(model: WeightModel, weights: Tensor, batch: ClientBatch, chosen: int) -> Iterator[Jacobian]:
    """Weighted Jacobians R' J of some rows after the others, as many as fit."""
    model = model.with_statistics(weights, batch)
    step = max(1, NUMBERS // _cost(model, weights, batch, chosen)[1])
    for at in torch.arange(batch.mask.shape[1], device=batch.mask.device).split(step):
        rows = batch.rows(at.expand(batch.clients, -1))
        yield linearise(model, weights, rows, batch).weighted(rows.mask)


def _structured(jacobian: Jacobian) -> TypeGuard[LayerJacobian]:
    """Whether products are computed unit by unit: on a CPU, where small and large matmuls cost the same."""
    return isinstance(jacobian, LayerJacobian) and jacobian.layout.linear and tensors.on_host(jacobian.inputs)


class _Chosen(NamedTuple):
    """Factors of a client's chosen weights, ordered by unit.

    Args:
        inputs: a weight's input at every row [B, N].
        slopes: of R combined outputs by the U units that are in use [N, R, U].
        unit: of every weight [B].
        counts: weights of every unit.
    """

    inputs: Tensor
    slopes: Tensor
    unit: Tensor
    counts: list[int]


def _worth_units(jacobian: LayerJacobian, batch: ClientBatch, index: Tensor) -> bool:
    """Whether all rows are here and N x N numbers per unit are no more than the C N x B of the columns."""
    rows, outputs, units = jacobian.sensitivities.shape[1:]
    return rows == batch.mask.shape[1] and rows * units <= outputs * index.shape[1]


def _by_unit(jacobian: LayerJacobian, index: Tensor) -> Tensor:
    """Order weights [K, B] by their unit."""
    return index.gather(1, torch.argsort(jacobian.layout.unit_of[index], dim=1, stable=True))


def _chosen(jacobian: LayerJacobian, client: int, index: Tensor) -> _Chosen:
    """Take the factors of one client's weights [B], which are ordered by unit."""
    units, unit, counts = torch.unique_consecutive(
        jacobian.layout.unit_of[index], return_inverse=True, return_counts=True
    )
    inputs = jacobian.inputs[client].mT.contiguous()[jacobian.layout.input_of[index]]
    return _Chosen(inputs, jacobian.sensitivities[client][..., units], unit, counts.tolist())


def _add_by_units(matrix: Tensor, chosen: _Chosen) -> None:
    """Add J' Lambda J to the lower triangle of a matrix [B, B], unit by unit."""
    begin = 0
    for unit, count in enumerate(chosen.counts):
        end = begin + count
        together = (chosen.slopes[..., None, :, unit] @ chosen.slopes).squeeze(1).mT.contiguous()  # M_n[o, :]
        scaled = together[chosen.unit[begin:]].mul_(chosen.inputs[begin:])
        matrix[begin:, begin:end].addmm_(scaled, chosen.inputs[begin:end].mT)
        begin = end


def _dual_by_units(chosen: _Chosen, prior: Tensor) -> Tensor:
    """Posterior variances [B] of weights with prior variances [B], by the matrix inversion lemma.

    diag(g - g J~' (I + J~ g J~')^-1 J~ g), J~ = R' J [N R, B]; products with J~ go unit by unit. NaN where the inverse
    has no factor, as after overflow.
    """
    slopes, rows, outputs = chosen.slopes, *chosen.slopes.shape[:2]
    parts = (prior.sqrt().unsqueeze(-1) * chosen.inputs).split(chosen.counts)
    gram = slopes.new_empty(rows, outputs, rows, outputs)
    by_unit = torch.stack([part.mT @ part for part in parts]).permute(1, 2, 0).contiguous()
    for chunk in torch.arange(rows).split(_step(slopes)):
        scaled = by_unit[chunk].unsqueeze(2) * slopes  # [M, N, R, U]
        gram[:, :, chunk] = (scaled.flatten(1, 2) @ slopes[chunk].mT).unflatten(1, (rows, outputs)).permute(1, 2, 0, 3)
    flat = gram.view(rows * outputs, -1)
    flat.diagonal().add_(1.0)
    factor = _factored(flat.unsqueeze(0)).squeeze(0)  # what is left where it fails cannot be inverted; NaN can
    inverse = torch.cholesky_inverse(factor).view_as(gram)
    for chunk in torch.arange(rows).split(_step(slopes)):
        across = inverse[:, :, chunk].permute(2, 0, 1, 3).flatten(1, 2) @ slopes[chunk]
        by_unit[chunk] = across.unflatten(1, (rows, outputs)).mul_(slopes).sum(2)
    blocks = by_unit.permute(2, 0, 1).contiguous()
    taken = [(part @ block).mul_(part).sum(1) for part, block in zip(parts, blocks, strict=True)]
    squares = slopes.square().sum(1).unbind(1)
    gained = [part.square() @ square for part, square in zip(parts, squares, strict=True)]
    return prior * _left(torch.cat(taken), torch.cat(gained))


def _step(slopes: Tensor) -> int:
    """Rows whose products with all rows fit into a cache."""
    return max(1, 2**20 // slopes.numel())


def _dual(chosen: Tensor, prior: Tensor) -> Tensor:
    """Posterior variances [K, B] from a weighted Jacobian [K, M, B] with M <= B, and prior variances [K, B]."""
    scaled = chosen * prior.sqrt().unsqueeze(1)
    gram = scaled @ scaled.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(gram)
    taken = torch.linalg.solve_triangular(factor, scaled, upper=False).square().sum(1)
    return torch.where(failed[:, None] > 0, torch.nan, prior * _left(taken, scaled.square().sum(1)))


def _left(taken: Tensor, gained: Tensor) -> Tensor:
    """Share of the prior variance that is left [*]: 1 - taken, where that cancels at least 1 / (1 + g H_rr).

    A variance is never under the one with all other weights known; 0 would say that the weight is not uncertain.
    """
    return torch.maximum(1.0 - taken, (1.0 + gained).reciprocal())

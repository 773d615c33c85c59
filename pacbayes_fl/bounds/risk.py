"""Empirical risks of the Gibbs predictor, which draws a hypothesis per prediction, as inputs of bounds.

A risk is exact where the posterior is over Gaussian functions or finitely many hypotheses; elsewhere it is an average
over hypotheses that are drawn, and the bound has to pay for the estimate. A draw is one hypothesis that is tried on all
rows, or on some (`in_parts`), or one for each row: all have the Gibbs risk as their mean, over parts where there are
any, and draws of every kind are independent.

A prediction that is no number has no loss: where a hypothesis makes one, of a label as of a real target, its row's loss
is NaN, and so is the client's risk, for which nothing is certified. Of the one predictor that a federation deploys it
has the largest loss (`predicted_losses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor

from pacbayes_fl.bounds.checks import ROUNDING, of_library, row_by_row
from pacbayes_fl.bounds.losses import BoundedLoss
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import FinitePosterior, FunctionPosterior, SampledPosterior

RowLoss = Callable[[Tensor, Tensor], Tensor]

_NUMBERS = 2**25  # input numbers that are predicted in one go: it bounds the activations in memory


class GibbsRisk(NamedTuple):
    """Risk of a Gibbs predictor on given rows.

    Args:
        risk: averaged over the client's rows and over hypotheses [K], in the unit of the loss; NaN without rows.
        draws: number of drawn hypotheses behind it; None where it is exact.
    """

    risk: Tensor
    draws: int | None


class GibbsLosses(NamedTuple):
    """Losses of a Gibbs predictor, row by row.

    Args:
        rows: averaged over hypotheses [K, N], float64, in the unit of the loss; 0 on padding.
        draws: number of drawn hypotheses behind them; None where they are exact.
    """

    rows: Tensor
    draws: int | None


def gibbs_risk(
    posterior: object, batch: ClientBatch, loss: BoundedLoss, draws: int, noise: Noise, by_row: bool = False
) -> GibbsRisk:
    """Average a loss over rows and hypotheses.

    Args:
        posterior: as `gibbs_losses`.
        batch: rows of the K clients.
        loss: of one prediction.
        draws: M, hypotheses to be drawn where the risk has no closed form.
        noise: the clients' streams for these draws.
        by_row: see `gibbs_losses`.

    Returns:
        The risk, exact or an estimate.

    Raises:
        AssumptionError: as `gibbs_losses`.
    """
    losses = gibbs_losses(posterior, batch, loss, draws, noise, by_row)
    return GibbsRisk(_per_row(losses.rows.sum(1), batch), losses.draws)


def gibbs_losses(
    posterior: object, batch: ClientBatch, loss: BoundedLoss, draws: int, noise: Noise, by_row: bool = False
) -> GibbsLosses:
    """Average a loss over hypotheses, for every row.

    Args:
        posterior: of K clients: over functions, over a list of hypotheses, or one that can be drawn from.
        batch: rows of the K clients, with labels or real targets as the loss has them.
        loss: of one prediction; one with `expected` for a posterior over functions.
        draws: M, hypotheses to be drawn where the risk has no closed form.
        noise: the clients' streams for these draws, that fitted nothing.
        by_row: draw a hypothesis for every row, where the posterior can, which may take a fraction of the time.

    Returns:
        The losses, exact or estimates; NaN where a hypothesis predicts NaN, as scores or as a number.

    Raises:
        AssumptionError: when the posterior is none of the three, the loss is for other predictions, or one of its
            values is outside of the range that it declares.
    """
    if isinstance(posterior, FunctionPosterior):
        weights = posterior.log_weights.double().exp().unsqueeze(-1)  # type: ignore[attr-defined]
        return GibbsLosses((function_losses(posterior, batch, loss) * weights).sum(1), None)
    if isinstance(posterior, FinitePosterior):
        return GibbsLosses(finite_losses(posterior, batch, loss), None)
    if not isinstance(posterior, SampledPosterior):
        raise AssumptionError(f"{type(posterior).__name__} has no hypotheses that could be drawn or listed")
    parts, noise = [], noise.copy()
    for rows in _blocks(batch):
        part = torch.zeros(rows.mask.shape, dtype=torch.float64, device=batch.x.device)
        for one in _draws(posterior, rows.x, draws, noise, by_row):
            part += _losses(one, rows, loss)
        parts.append(part)
    return GibbsLosses(torch.cat(parts, 1) / draws, draws)


def drawn_losses(
    posterior: SampledPosterior, batch: ClientBatch, loss: BoundedLoss, draws: int, noise: Noise, by_row: bool = False
) -> Iterator[Tensor]:
    """Draw hypotheses, and take the loss of each for every row.

    Args:
        posterior: of K clients, one that can be drawn from.
        batch: rows of the K clients.
        loss: of one prediction.
        draws: M.
        noise: the clients' streams for these draws, that fitted nothing.
        by_row: see `gibbs_losses`. Losses of a draw then vary over rows as those of several hypotheses do, and a bound
            on the variance of one hypothesis' losses needs draws of single ones.

    Yields:
        [K, N] of every draw, float64, in the unit of the loss; 0 on padding, NaN where it predicts NaN.
    """
    blocks, noise = _blocks(batch), noise.copy()
    each = [_draws(posterior, rows.x, draws, noise, by_row) for rows in blocks]
    for ones in zip(*each, strict=True):
        yield torch.cat([_losses(one, rows, loss).double() for one, rows in zip(ones, blocks, strict=True)], 1)


def in_parts(batch: ClientBatch, parts: int) -> list[tuple[ClientBatch, Tensor]]:
    """Deal every client's rows out, with weights that make the mean over parts of weighted losses their mean over rows.

    Of n rows a part gets every so manieth, floor(n / parts) in all, at parts / n each, and all that remain at 1 / n.

    Args:
        batch: rows of the K clients.
        parts: their number V.

    Returns:
        Of each part its rows [K, n'], and weights [K, n'], float64, that sum to 1; NaN for a client without rows.
    """
    size = batch.size.long().to(batch.x.device).unsqueeze(1)
    each, left = size // parts, size % parts
    at = torch.arange(max(1, int((each + left).max())), device=size.device)
    dealt, real = at < each, at < each + left
    unit = torch.where(size > 0, 1.0 / size.double(), torch.nan)
    weights = torch.where(real, torch.where(dealt, parts, 1) * unit, unit * 0.0)
    result = []
    for part in range(parts):
        index = torch.where(dealt, part + parts * at, parts * each + at - each)
        rows = batch.rows(torch.where(real, index, 0))
        result.append((replace(rows, mask=real), weights))
    return result


def predicted_losses(posterior: Any, batch: ClientBatch, loss: BoundedLoss) -> Tensor:
    """Loss of the predictions that a posterior gives, averaged over its hypotheses: of one predictor, by row.

    Labels are the most probable ones of averaged probabilities, or these probabilities themselves for a loss of them;
    a real target is predicted by the mean. A prediction that is no number has the largest loss.

    Args:
        posterior: of K clients, with `predict`.
        batch: rows of the K clients.
        loss: of one prediction.

    Returns:
        [K, N], float64, in the unit of the loss; 0 on padding.

    Raises:
        AssumptionError: when the loss is for predictions of another kind, or leaves the range that it declares.
    """
    parts = []
    for rows in _blocks(batch):
        with torch.no_grad():
            result = posterior.predict(rows.x)
        real = batch.y.is_floating_point()
        if hasattr(loss, "expected") != real:
            raise AssumptionError(f"{loss.name} is not for {'real targets' if real else 'labels'}")
        prediction = result.mean if real else result.log_probs
        parts.append(_by_prediction(prediction, rows, loss).nan_to_num(loss.high))
    return torch.cat(parts, 1)


def function_risks(posterior: object, batch: ClientBatch, loss: BoundedLoss) -> Tensor:
    """Expected loss of every component of a mixture of Gaussian functions, averaged over rows, without sampling.

    Args:
        posterior: over functions, a mixture of P.
        batch: rows of K clients with real targets.
        loss: one with a closed form.

    Returns:
        [K, P], in the unit of the loss; NaN for a client without rows.

    Raises:
        AssumptionError: as `function_losses`.
    """
    return _per_row(function_losses(posterior, batch, loss).sum(-1), batch)


def function_losses(posterior: Any, batch: ClientBatch, loss: BoundedLoss) -> Tensor:
    """Expected loss of every component of a mixture of Gaussian functions, for every row.

    Args:
        posterior: over functions, a mixture of P.
        batch: rows of K clients with real targets.
        loss: one with a closed form, such as `SaturatingSquare`.

    Returns:
        [K, P, N], in the unit of the loss; 0 on padding, NaN where a moment is NaN.

    Raises:
        AssumptionError: when the loss has no closed form, as that of a label, leaves the range that it declares, or its
            closed form is that of another loss.
    """
    expected = getattr(loss, "expected", None)
    if expected is None:
        raise AssumptionError(
            f"{loss.name} is not for real targets", hint="take 'saturating-square' or 'clipped-square'"
        )
    result = posterior.function(batch.x)
    mask = batch.mask.unsqueeze(1).expand_as(result.means)
    y = batch.y.unsqueeze(1).expand_as(result.means)
    _require_average(loss, result.means, y, mask)
    losses = row_by_row(loss, expected, mask, result.means, result.variances, y)
    losses = torch.where((result.means + result.variances).isnan(), torch.nan, losses)
    return torch.where(mask, losses, 0.0)


def _require_average(loss: Any, mean: Tensor, y: Tensor, rows: Tensor) -> None:
    """Refuse a loss of one's own whose average over a prediction that is certain is below it: inherited, maybe."""
    if of_library(loss):
        return
    average, once = loss.expected(mean, torch.zeros_like(mean), y).double(), loss(mean, y).double()
    wrong = rows & (average < once - ROUNDING * (loss.high - loss.low))
    if bool(wrong.any()):
        what = (
            f"the loss {loss.name!r} ({type(loss).__name__}) is {once[wrong][0].item():g} of a prediction of which its"
        )
        what = f"{what} `expected`, the average over a Gaussian, is {average[wrong][0].item():g} without variance"
        raise AssumptionError(what, hint="write `expected` for this loss, as an average or an upper bound of it")


def finite_risks(posterior: FinitePosterior, batch: ClientBatch, loss: BoundedLoss) -> tuple[Tensor, Tensor]:
    """Take weight and risk of every hypothesis of a finite list.

    Args:
        posterior: over J hypotheses.
        batch: rows of K clients.
        loss: of one prediction.

    Returns:
        Weights [K, J], and risks [K, J] in the unit of the loss.
    """
    sums: Tensor | None = None
    log_weights: list[Tensor] = []
    for rows in _blocks(batch):
        result = [
            (log_weight, _losses(one, rows, loss).sum(1)) for log_weight, one in posterior.enumerate_hypotheses(rows.x)
        ]
        log_weights = [log_weight for log_weight, _ in result]
        part = torch.stack([total for _, total in result], 1)
        sums = part if sums is None else sums + part
    return torch.stack(log_weights, 1).double().exp(), _per_row(cast(Tensor, sums), batch)


def finite_losses(
    posterior: FinitePosterior, batch: ClientBatch, loss: BoundedLoss, weights: Tensor | None = None
) -> Tensor:
    """Average a loss over a finite list of hypotheses, for every row.

    Args:
        posterior: over J hypotheses.
        batch: rows of K clients.
        loss: of one prediction.
        weights: of the hypotheses [K, J]; those of the posterior when None.

    Returns:
        [K, N], in the unit of the loss; 0 on padding.
    """
    parts = []
    for rows in _blocks(batch):
        part = torch.zeros(rows.mask.shape, dtype=torch.float64, device=batch.x.device)
        for place, (log_weight, one) in enumerate(posterior.enumerate_hypotheses(rows.x)):
            weight = log_weight.double().exp() if weights is None else weights[:, place]
            part += weight.unsqueeze(1) * _losses(one, rows, loss)
        parts.append(part)
    return torch.cat(parts, 1)


def drawn_by_row(posterior: object, batch: ClientBatch, noise: Noise) -> bool:
    """Say whether draws of a posterior have a hypothesis of its own for every row, independent of the others'.

    Args:
        posterior: of K clients.
        batch: rows of the K clients.
        noise: the clients' streams.

    Returns:
        Whether they have where that is asked for (`gibbs_losses`).
    """
    return _by_row(posterior, batch.x[:, :1], 1, noise.copy()) is not None


def _draws(
    posterior: SampledPosterior, x: Tensor, draws: int, noise: Noise, by_row: bool
) -> Iterator[TorchDistribution]:
    """Draw hypotheses: one for each row where that is asked for and known, else the same for every block of rows."""
    each = _by_row(posterior, x, draws, noise) if by_row else None
    return posterior.sample_hypotheses(x, draws, noise.copy()) if each is None else each


def _by_row(posterior: object, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution] | None:
    each = getattr(posterior, "sample_by_row", None)
    return None if each is None else each(x, draws, noise)


def _blocks(batch: ClientBatch) -> list[ClientBatch]:
    step = max(1, _NUMBERS // max(1, batch.x[:, 0].numel()))
    positions = torch.arange(batch.mask.shape[1], device=batch.x.device).split(step)
    return [batch.rows(at.expand(batch.clients, -1)) for at in positions] if len(positions) > 1 else [batch]


def _losses(one: TorchDistribution, batch: ClientBatch, loss: BoundedLoss) -> Tensor:
    """Loss of one hypothesis per client, for every row [K, N]; 0 on padding."""
    real, kind = batch.y.is_floating_point(), type(one).__name__
    if isinstance(one, Categorical) == real:
        what = f"{loss.name} cannot be taken of {kind} predictions and {batch.y.dtype}"
        raise AssumptionError(
            what, hint="numbers are predicted by a mean" if real else "labels are predicted by Categorical"
        )
    if hasattr(loss, "expected") != real:
        raise AssumptionError(f"{loss.name} is not for {'real targets' if real else 'labels'}")
    try:
        prediction = one.mean if real else one.logits
    except (NotImplementedError, AttributeError) as error:
        what = f"{loss.name} is of the mean of a prediction, and {kind} predictions have none"
        raise AssumptionError(what, hint=f"give {kind} a `mean`") from error
    return _by_prediction(prediction, batch, loss)


def _by_prediction(prediction: Tensor, batch: ClientBatch, loss: BoundedLoss) -> Tensor:
    """Loss of predictions for every row [K, N], float64; 0 on padding, NaN where one is NaN."""
    losses = row_by_row(loss, cast(RowLoss, loss), batch.mask, prediction, batch.y)
    missing = prediction.isnan()
    if not batch.y.is_floating_point():
        missing = missing.any(-1)  # the largest of such scores is NaN, in a place that may be that of the label
    losses = torch.where(missing, torch.nan, losses)
    return torch.where(batch.mask, losses, 0.0)


def _per_row(total: Tensor, batch: ClientBatch) -> Tensor:
    """Divide sums [K, *] by the clients' rows."""
    size = torch.where(batch.size > 0, batch.size, torch.nan).to(total.device)
    return total / size.view(-1, *[1] * (total.dim() - 1))

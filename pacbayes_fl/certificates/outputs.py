"""What hypotheses say of rows, as a tensor that a loss can take: log probabilities, labels or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, OneHotCategorical

from pacbayes_fl.bounds import BoundedLoss
from pacbayes_fl.bounds.checks import in_declared_range
from pacbayes_fl.data.archives import Array
from pacbayes_fl.errors import AssumptionError, ShapeError

AS_LABELS = "floats are numbers to be predicted; labels are whole numbers or words: rows=(inputs, targets.astype(int))"
"""What to do where labels came as floats."""

_TWO_SCORES = (
    "of one logit a row give two scores, torch.stack((torch.zeros_like(logit), logit), -1); in place of Bernoulli a"
    " program observes Categorical(logits=...) of these; of numbers to be predicted targets.astype(float)"
)
_SUM = 1e-3
"""By which probabilities of a row may miss 1: those in half precision do."""


class RowLoss(BoundedLoss, Protocol):
    """A bounded loss that can be called."""

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Give the loss by row.

        Args:
            prediction: log probabilities [n, C], or numbers [n].
            y: labels or real targets [n].

        Returns:
            [n].
        """


def said_of(one: Callable[[Any], object], inputs: object, y: Tensor, loss: RowLoss | None = None) -> Tensor:
    """Ask one hypothesis what it says of all rows.

    Args:
        one: the hypothesis.
        inputs: of the rows.
        y: labels, int64, or real targets [n].
        loss: that will be taken of it, by which scores and probabilities may be told apart; None where none will.

    Returns:
        Log probabilities [n, C], labels [n] or numbers [n], in storage of their own.

    Raises:
        AssumptionError: when the model is not fitted, a prediction is NaN, or scores are probabilities and the loss
            is another one of their logarithms.
        ShapeError: when predictions are not of the rows, or of another kind than the targets.
    """
    try:
        said = outputs_of(one(inputs)).cpu().clone()  # a predictor may write its next answer over this one
    except (ValueError, AttributeError) as error:
        if type(error).__name__ != "NotFittedError":  # of scikit-learn, which need not be there
            raise
        what = f"the model must be fitted before it is certified: {str(error).partition('.')[0]}"
        raise AssumptionError(what, hint="fit it on rows that are none of the bound's") from error
    if y.is_floating_point() and said.dim() != 1:
        raise ShapeError(f"predictions of real targets must be [n], got {list(said.shape)}", hint=AS_LABELS)
    if said.dim() not in (1, 2):  # [n, 1, C] against labels [n] would be all pairs of rows
        what = f"scores of labels must be [n, C], and labels [n], got {list(said.shape)}"
        raise ShapeError(what, hint="squeeze or average what is neither a row nor a class")
    if len(said) != len(y):
        raise ShapeError(f"the model gives {len(said)} predictions of {len(y)} rows")
    if said.dim() > 1:
        if loss is not None and _are_probabilities(said) and _differs(loss, said.double(), y):
            what = "scores of labels must be log probabilities or logits, got probabilities: they sum to 1 in every row"
            raise AssumptionError(what, hint="give their logarithms, such as np.log(np.maximum(p, 1e-300))")
        said = said.double().log_softmax(-1)
    missing = said.isnan().reshape(len(y), -1).any(1)
    if bool(missing.any()):
        which = f"{int(missing.sum())} of {len(y)} rows, row {int(missing.nonzero()[0])} first"
        raise AssumptionError(
            f"predictions must be numbers, got NaN in {which}",
            hint="what is no number has no loss: see what the model makes of these inputs",
        )
    if said.dim() == 1 and not y.is_floating_point():
        if said.is_floating_point() and bool((said != said.round()).any()):
            what = f"scores of labels must be [n, C], got one number a row, such as {said[said != said.round()][0]:.3g}"
            raise ShapeError(what, hint=_TWO_SCORES)
    return said


def _are_probabilities(scores: Tensor) -> bool:
    """Whether scores [n, C] are of a kind that log probabilities and logits of many rows are not."""
    return bool((scores >= 0).all()) and bool(((scores.double().sum(-1) - 1.0).abs() <= _SUM).all())


def _differs(loss: RowLoss, scores: Tensor, y: Tensor) -> bool:
    """Whether it matters to a loss that probabilities [n, C] are taken for scores: not where it counts errors."""
    known = (y >= 0) & (y < scores.shape[1])
    said, labels = scores[known], y[known]
    tiny = torch.finfo(torch.float64).tiny
    both = said.log_softmax(-1), said.clamp_min(tiny).log()
    taken, meant = (in_declared_range(loss, loss(each, labels), labels == labels) for each in both)
    return not torch.equal(taken, meant)


def outputs_of(result: object) -> Tensor:
    """Turn what a predictor says into a tensor: scores [n, C], or labels or real predictions [n].

    Args:
        result: an array, a tensor or a distribution.

    Returns:
        [n, C] or [n], without slopes.

    Raises:
        AssumptionError: when it is a distribution whose mean has no formula.
    """
    if isinstance(result, Categorical | OneHotCategorical):
        return result.logits.detach()
    if isinstance(result, Distribution):
        try:
            return result.mean.detach()
        except NotImplementedError as error:
            what = f"a prediction is the mean of a {type(result).__name__}, which has no formula"
            raise AssumptionError(
                what, hint="predict numbers: a function of inputs, or sample that gives one"
            ) from error
    tensor = torch.as_tensor(np.asarray(result) if not isinstance(result, Tensor) else result.detach())
    return tensor.squeeze(-1) if tensor.dim() == 2 and tensor.shape[1] == 1 else tensor


def array_of(values: object) -> Array:
    """Turn inputs or targets into an array.

    Args:
        values: a tensor of any type, or what numpy makes an array of.

    Returns:
        The array; of a tensor in a type that numpy lacks, such as bfloat16, one in float64, which holds its values.
    """
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.double() if values.dtype.is_floating_point and values.dtype.itemsize < 4 else values).numpy()

"""How good class probabilities are: accuracy, log likelihood, Brier score, and whether confidence comes true.

Every function takes `(predictive, y, mask)` and returns one number a client, float64 [K]: an average over the client's
real rows. Whatever stands in padded rows, NaN included, has no influence; a client without a row gets NaN.

Calibration uses the estimator "top-label, equal-width": only the class with the highest probability counts, and its
probability, the confidence, falls into one of equal bins (lo, hi] on [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.metrics.rows import masked_mean, real_labels
from pacbayes_fl.posteriors.predictive import ClassPredictive


def accuracy(predictive: ClassPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Share of rows whose most probable class is the label; the lower of two equally probable classes counts.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.

    Returns:
        Accuracy [K], in [0, 1]; NaN for a client without rows, or with a row whose probabilities are NaN: the first of
        these would be the most probable.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import accuracy
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> predictive = ClassMixture(torch.tensor([[[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.5, 0.5]]]).log())
        >>> y, mask = torch.tensor([[0, 0, 0, 1]]), torch.ones(1, 4, dtype=torch.bool)
        >>> accuracy(predictive, y, mask).tolist()  # of equally probable classes the lower one counts
        [0.5]
    """
    y = real_labels(predictive, y, mask)
    probs = predictive.probs
    hit = (probs.argmax(-1) == y).double()
    return masked_mean(hit.masked_fill(probs.isnan().any(-1), torch.nan), mask)


def nll(predictive: ClassPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Negative log likelihood of the labels, averaged over rows.

    NLL_k = -1/m_k sum_j ln p(y_j | x_j)

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.

    Returns:
        NLL [K], in nats per row; NaN for a client without rows, or with a row whose probabilities are NaN; infinite
        where a label was held impossible.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import nll
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> guess, mask = ClassMixture(torch.full((1, 2, 10), 0.1).log()), torch.ones(1, 2, dtype=torch.bool)
        >>> nll(guess, torch.tensor([[3, 7]]), mask).numpy().round(4).tolist()  # ln 10
        [2.3026]
    """
    y = real_labels(predictive, y, mask)
    log_prob = predictive.log_prob(y).double()
    return -masked_mean(log_prob.masked_fill(predictive.probs.isnan().any(-1), torch.nan), mask)


def brier(predictive: ClassPredictive, y: Tensor, mask: Tensor, per_class: bool = False) -> Tensor:
    """Squared distance between the probabilities and the label, averaged over rows (Brier 1950).

    BRI_k = 1/m_k sum_j sum_c (p(c | x_j) - 1{y_j = c})^2

    The sum over classes is the convention of the public code of FedSI and BPFed; it lies in [0, 2].

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.
        per_class: average over the classes instead of summing over them.

    Returns:
        Brier score [K], without unit; NaN for a client without rows.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import brier
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> predictive = ClassMixture(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]], [[0.0, 1.0]]]).log())
        >>> y, mask = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1, dtype=torch.bool)
        >>> brier(predictive, y, mask).numpy().round(4).tolist()  # sure and right, a guess, sure and wrong
        [0.0, 0.5, 2.0]
    """
    y = real_labels(predictive, y, mask)
    probs = predictive.probs.double()
    classes = probs.shape[-1]
    distance = (probs - torch.nn.functional.one_hot(y, classes)).square().sum(-1)
    return masked_mean(distance, mask) / (classes if per_class else 1)


def reliability(predictive: ClassPredictive, y: Tensor, mask: Tensor, bins: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, accuracy and mean confidence of each client by bin of confidence (top-label, equal-width).

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.
        bins: H, equal bins (lo, hi] on [0, 1].

    Returns:
        Number of rows [K, H] in int64, accuracy [K, H] and mean confidence [K, H] in float64, NaN in an empty bin.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.
        StudyError: when there is no bin.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import reliability
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> predictive = ClassMixture(torch.tensor([[[0.75, 0.25], [0.75, 0.25], [0.25, 0.75]]]).log())
        >>> y, mask = torch.tensor([[0, 1, 1]]), torch.ones(1, 3, dtype=torch.bool)
        >>> rows, right, confidence = reliability(predictive, y, mask, bins=2)
        >>> rows.tolist(), right.numpy().round(3).tolist(), confidence.numpy().round(3).tolist()
        ([[0, 3]], [[nan, 0.667]], [[nan, 0.75]])
    """
    if bins < 1:
        raise StudyError(f"bins must be at least 1, got {bins}")
    y = real_labels(predictive, y, mask)
    probs = predictive.probs.double()
    confidence, hit = probs.amax(-1), (probs.argmax(-1) == y).double()
    edges = torch.arange(1, bins, dtype=torch.float64, device=y.device) / bins
    place = torch.bucketize(confidence, edges)
    inside = [mask & (place == number) for number in range(bins)]  # a bin at a time: never [K, N, H]
    count = torch.stack([rows.sum(1) for rows in inside], 1)
    right, sure = (torch.stack([masked_mean(each, rows) for rows in inside], 1) for each in (hit, confidence))
    return count, right, sure


def ece(predictive: ClassPredictive, y: Tensor, mask: Tensor, bins: int = 10, norm: str = "l1") -> Tensor:
    """Expected calibration error (top-label, equal-width; Guo, Pleiss, Sun and Weinberger 2017).

    ECE_k = sum_h n_h / m_k |accuracy_h - confidence_h|

    With norm = "l2" it is sqrt(sum_h n_h / m_k (accuracy_h - confidence_h)^2). The number depends on the bins: compare
    only what was taken with the same.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.
        bins: equal bins (lo, hi] on [0, 1].
        norm: "l1" or "l2".

    Returns:
        ECE [K], in [0, 1]; NaN for a client without rows.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.
        StudyError: when there is no bin, or no norm of that name.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import ece
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> predictive = ClassMixture(torch.tensor([0.8, 0.2]).log().expand(2, 5, 2))
        >>> y, mask = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]), torch.ones(2, 5, dtype=torch.bool)
        >>> ece(predictive, y, mask).numpy().round(4).tolist()  # 80 % sure, and right in 80 % and in 40 % of the rows
        [0.0, 0.4]
    """
    if norm not in ("l1", "l2"):
        raise StudyError(f"norm must be one of l1, l2, got {norm!r}")
    count, right, sure = reliability(predictive, y, mask, bins)
    gap, share = (right - sure).abs().masked_fill(count == 0, 0.0), count.double() / count.sum(1, keepdim=True)
    return (share * gap).sum(1) if norm == "l1" else (share * gap.square()).sum(1).sqrt()


def mce(predictive: ClassPredictive, y: Tensor, mask: Tensor, bins: int = 10) -> Tensor:
    """Maximum calibration error: the largest gap among the bins that hold a row (top-label, equal-width).

    MCE_k = max_h |accuracy_h - confidence_h|

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1.
        mask: bool [K, N], True on real rows.
        bins: equal bins (lo, hi] on [0, 1].

    Returns:
        MCE [K], in [0, 1]; NaN for a client without rows.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or y holds no integers.
        DataError: when a label of a real row is not among the classes.
        StudyError: when there is no bin.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics import ece, mce
        >>> from pacbayes_fl.posteriors.classes import ClassMixture
        >>> sure, surer = torch.tensor([0.75, 0.25]).log(), torch.tensor([0.9, 0.1]).log()
        >>> predictive = ClassMixture(torch.stack([sure, surer, surer, surer]).unsqueeze(0))
        >>> y, mask = torch.tensor([[1, 0, 0, 0]]), torch.ones(1, 4, dtype=torch.bool)
        >>> mce(predictive, y, mask).item(), round(ece(predictive, y, mask).item(), 4)  # one row of four is far off
        (0.75, 0.2625)
    """
    count, right, sure = reliability(predictive, y, mask, bins)
    largest = (right - sure).abs().masked_fill(count == 0, 0.0).amax(1)
    return largest.masked_fill(count.sum(1) == 0, torch.nan)

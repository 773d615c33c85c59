"""Estimators of scikit-learn: `fit(X, y, groups)`, `predict(X, groups)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.study.estimators.base import FederatedEstimator, Values
from pacbayes_fl.study.serving.predict import levels_of

Array = NDArray[Any]


class FederatedRegressor(RegressorMixin, FederatedEstimator):
    """A method on numbers as an estimator; a subclass names it: `class Mine(FederatedRegressor, method="pfedgp")`.

    Example:
        >>> import numpy as np, pacbayes_fl as fl
        >>> class Ridge(fl.FederatedRegressor, method="pooled-ridge"):
        ...     pass
        >>> x, house = np.linspace(-2, 2, 24).reshape(-1, 1), np.tile(["north", "south", "west"], 8)
        >>> model = Ridge().fit(x, 3 * x[:, 0] + 1, groups=house)
        >>> model.predict([[2.0]], groups=["north"]).round(2).tolist()
        [7.0]
    """

    _task = "regression"

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train a federation.

        Args:
            X: rows [R, d].
            y: targets [R].
            groups: the client of each row [R], texts or numbers; one client when None.

        Returns:
            The estimator.

        Raises:
            ValueError: of rows, or values of parameters, that cannot be used.
        """
        return self._train(self._checked(X, groups, y=y, reset=True), None)

    def predict(
        self, X: ArrayLike, groups: ArrayLike | None = None, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict targets.

        Args:
            X: rows [R, d].
            groups: the client of each row [R]. A client that is not known has the prior's prediction, in the units of
                the average client, with a warning; `join` takes rows of it.
            return_std: whether to give the standard deviation too.

        Returns:
            Means [R]; and standard deviations [R], observation noise included.

        Raises:
            ValueError: of rows that cannot be used.
        """
        rows = self._rows(self._checked(X, groups))
        mean, std = self.federation_.predict(rows).numpy()
        return (mean, std) if return_std else mean

    @kinds_checked
    def predict_quantiles(self, X: ArrayLike, quantiles: Sequence[float], groups: ArrayLike | None = None) -> Array:
        """Predict quantiles of the targets.

        Args:
            X: rows [R, d].
            quantiles: Q levels in (0, 1).
            groups: as `predict`.

        Returns:
            [R, Q], observation noise included.

        Raises:
            ValueError: when a level is not in (0, 1), or as `predict`.
        """
        rows, levels = self._rows(self._checked(X, groups)), [*levels_of(quantiles).values()]
        result: Array = self.federation_.predict(rows, levels)[2:].T.numpy()
        return result

    def predict_interval(
        self, X: ArrayLike, groups: ArrayLike | None = None, confidence_level: float = 0.95
    ) -> tuple[Array, Array]:
        """Predict intervals: of the model or, with `intervals="conformal"`, by leave-one-out residuals.

        What conformal intervals cover is said at the parameter `intervals`: of clients that have joined after the
        training at least 2 c - 1 for a level c, and about c as a rule. A client with fewer than 1 / (1 - c) - 1 rows
        takes the quantile of all clients' residuals.

        Args:
            X: rows [R, d].
            groups: as `predict`.
            confidence_level: share c of the targets that an interval should cover, in (0, 1).

        Returns:
            Means [R]; and lower and upper ends [R, 2], observation noise included.

        Raises:
            ValueError: when the level is not in (0, 1), or as `predict`.

        Example:
            >>> import numpy as np, pacbayes_fl as fl
            >>> x = np.linspace(-2, 2, 24).reshape(-1, 1)
            >>> model = fl.PacPFLRegressor(rounds=2, intervals="conformal").fit(x, np.sin(x[:, 0]))
            >>> mean, ends = model.predict_interval(x[:3], confidence_level=0.9)
            >>> ends.shape, bool((ends[:, 0] < ends[:, 1]).all())
            ((3, 2), True)
        """
        rows = self._rows(self._checked(X, groups))
        if not 0 < confidence_level < 1:
            raise ValueError(f"confidence_level must be a share between 0 and 1, such as .95, got {confidence_level:g}")
        found: Array = self.federation_.interval(rows, float(confidence_level)).numpy()
        return found[:, 0], found[:, 1:]

    def score(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Give the coefficient of determination R^2 = 1 - sum (y - mean)^2 / sum (y - average of y)^2 over all rows.

        Args:
            X: rows [R, d].
            y: targets [R].
            groups: as `predict`.
            sample_weight: of the rows [R].

        Returns:
            R^2.
        """
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _encoded(self, y: Values) -> Tensor:
        """Targets are numbers already, or words of such."""
        try:
            return torch.from_numpy(np.asarray(y, np.float64).copy())
        except ValueError as error:
            what = f"y must be numbers for {type(self).__name__}: {error}"
            raise ValueError(f"{what}; labels are for a classifier, such as PFedBayesClassifier") from error


class FederatedClassifier(ClassifierMixin, FederatedEstimator):
    """A method on labels as an estimator; a subclass names it: `class Mine(FederatedClassifier, method="fedsi")`.

    Example:
        >>> import numpy as np, pacbayes_fl as fl
        >>> class FedAvgClassifier(fl.FederatedClassifier, method="fedavg"):
        ...     pass
        >>> x, house = np.linspace(-2, 2, 24).reshape(-1, 1), np.tile(["north", "south", "west"], 8)
        >>> model = FedAvgClassifier(rounds=2).fit(x, np.where(x[:, 0] > 0, "day", "night"), groups=house)
        >>> model.predict_proba(x[:2], groups=house[:2]).sum(1).round(4).tolist(), model.classes_.tolist()
        ([1.0, 1.0], ['day', 'night'])
    """

    _task = "classification"
    classes_: Array

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train a federation.

        Args:
            X: rows [R, d].
            y: labels [R], of two classes at least.
            groups: the client of each row [R], texts or numbers; one client when None.

        Returns:
            The estimator.

        Raises:
            ValueError: of rows, or values of parameters, that cannot be used.
        """
        checked = self._checked(X, groups, y=y, reset=True)
        check_classification_targets(checked.y)
        self.classes_ = np.unique(checked.y)  # type: ignore[arg-type]
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes, and y has one class alone: {self.classes_[0]!r}"
            )
        return self._train(checked, len(self.classes_))

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """Predict the probabilities of all classes.

        Args:
            X: rows [R, d].
            groups: the client of each row [R]. A client that is not known has the prior's prediction, with a warning;
                `join` takes rows of it.

        Returns:
            [R, C] in the order of `classes_`, averaged over draws of the weights.

        Raises:
            ValueError: of rows that cannot be used.
        """
        rows = self._rows(self._checked(X, groups))
        result: Array = self.federation_.probabilities(rows).numpy()
        return result

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """Predict the most probable labels.

        Args:
            X: rows [R, d].
            groups: as `predict_proba`.

        Returns:
            Labels [R].
        """
        most = self.predict_proba(X, groups).argmax(1)
        result: Array = self.classes_[most]
        return result

    def score(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Give the share of rows whose label is predicted.

        Args:
            X: rows [R, d].
            y: labels [R].
            groups: as `predict_proba`.
            sample_weight: of the rows [R].

        Returns:
            The accuracy.
        """
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _encoded(self, y: Values) -> Tensor:
        """Number the classes 0..C-1."""
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y has classes that fit has not seen: {', '.join(map(str, unknown[:6]))}")
        return torch.from_numpy(np.searchsorted(self.classes_, y)).double()


@final
class PacPFLRegressor(FederatedRegressor, method="pac-pfl"):
    """PAC-PFL with Gaussian processes: a prior that groups of rows share, and a posterior of each group's own.

    Example:
        >>> import numpy as np, pacbayes_fl as fl
        >>> x = np.linspace(-2, 2, 24).reshape(-1, 1)
        >>> house = np.repeat(["north", "south", "west"], 8)
        >>> model = fl.PacPFLRegressor(rounds=2).fit(x, np.sin(x[:, 0]), groups=house)
        >>> mean, std = model.predict(x[:3], groups=house[:3], return_std=True)
        >>> mean.shape, bool((std > 0).all()), model.clients_
        ((3,), True, ('north', 'south', 'west'))
    """


@final
class PFedBayesClassifier(FederatedClassifier, method="pfedbayes"):
    """pFedBayes: Bayesian networks of groups of rows, whose prior is what the groups have learned together.

    Example:
        >>> import numpy as np, pacbayes_fl as fl
        >>> x = np.linspace(-2, 2, 24).reshape(-1, 1)
        >>> house = np.tile(["north", "south", "west"], 8)
        >>> label = np.where(x[:, 0] > 0, "day", "night")
        >>> model = fl.PFedBayesClassifier(rounds=2, zeta=1.0).fit(x, label, groups=house)
        >>> model.predict_proba(x[:3], groups=house[:3]).shape, model.classes_.tolist()
        ((3, 2), ['day', 'night'])
    """

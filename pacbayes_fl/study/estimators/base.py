"""What all estimators have: a federation whose clients are the groups of the rows, in the interface of scikit-learn."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names as check_feature_names
from sklearn.utils.validation import _check_n_features as check_n_features
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, check_X_y, validate_data
from torch import Tensor

from pacbayes_fl.errors import caller_stacklevel
from pacbayes_fl.options import meanings
from pacbayes_fl.study.estimators import parameters
from pacbayes_fl.study.estimators.fitted import Fitted, Rows
from pacbayes_fl.study.file import Study

Values = NDArray[Any]
_ALL: Final = "all"
"""The one client of rows without groups."""
_OWN: Final[Mapping[str, object]] = MappingProxyType({"random_state": 0, "group": None})
_LEAST: Final = 2  # rows, to learn from
_NO_Y: Final = "requires y to be passed, but the target y is None"


class Checked(NamedTuple):
    """Rows as they are learned: numbers [R, d], targets [R] or None, and the client of each row."""

    x: NDArray[np.float64]
    y: Values | None
    owners: list[str]


class FederatedEstimator(BaseEstimator):
    """A method as an estimator, whose parameters are the options of a study, with their defaults.

    `fit` trains by the engine of `pacbayes_fl.run`, on all rows that it is given; what is left at its default is
    settled as in a study of a file. Private runs are not to be had: every `fit` would be a release, and those of a
    grid search would go uncounted.

    Args:
        random_state: seed of every random draw, or a `RandomState`.
        group: name or position of the column of X that holds the client of each row, where `groups` cannot be handed
            on: in a pipeline or a grid search without metadata routing. It is no feature.

    Attributes:
        federation_: the trained federation, with the training rows of its clients, by which they personalise.
        n_features_in_: number of columns of X, that of the groups included.
        feature_names_in_: their names, where all are texts.
    """

    _method: ClassVar[str] = ""
    _task: ClassVar[str] = ""
    _options: ClassVar[Sequence[parameters.Parameter]] = ()
    random_state: int | np.random.RandomState | None
    group: str | int | None
    federation_: Fitted

    def __init__(self, **given: object) -> None:
        """Refuse an estimator of no method: a class that names one has parameters of its own."""
        name = type(self).__name__
        method = given.get("method", "pfedgp" if self._task == "regression" else "fedsi")
        raise TypeError(f"{name} is of no method: `class Mine({name}, method={method!r}): ...`, and then Mine()")

    def __init_subclass__(cls, method: str = "", **more: object) -> None:
        """Give a class that names its method the parameters of that method, and their meanings as its docstring."""
        super().__init_subclass__(**more)
        if not method:
            return

        def __init__(self: FederatedEstimator, **given: object) -> None:
            for name, one in [*signature.parameters.items()][1:]:
                setattr(self, name, given.pop(name, one.default))
            if given:
                raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {next(iter(given))!r}")

        options = parameters.parameters_of(method)
        signature = parameters.signature(options, _OWN)
        __init__.__signature__ = signature  # type: ignore[attr-defined]
        cls._method, cls._options, cls.__init__ = method, options, __init__  # type: ignore[method-assign]
        known = meanings(FederatedEstimator)
        own, fitted = ({n: known[n] for n in known if (n in _OWN) == mine} for mine in (True, False))
        sections = ("    Args:", parameters.arguments(options), parameters.listed(own), "", "    Attributes:")
        cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", *sections, parameters.listed(fitted)])

    @property
    def study_(self) -> Study:
        """The study that was run, every value resolved."""
        check_is_fitted(self)
        return self.federation_.trained.study

    @property
    def clients_(self) -> tuple[str, ...]:
        """Names of the clients that took part in the training, and of those that have joined."""
        check_is_fitted(self)
        return self.federation_.clients

    def join(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Let clients personalise that never trained, so that predictions for them are their own.

        Args:
            X: rows of theirs [R, d].
            y: targets [R].
            groups: the client of each row [R].

        Returns:
            The estimator, whose federation knows them too and is otherwise the same.

        Raises:
            ValueError: of a client that took part in the training, or of rows that cannot be used.
        """
        check_is_fitted(self)
        rows = self._rows(self._checked(X, groups, y=y))
        trained = self.federation_.trained.groups["existing"].train.names
        if again := [name for name in rows.by_client() if name in trained]:
            raise ValueError(f"{', '.join(again[:6])} took part in the training: fit with all rows of theirs")
        self.federation_ = self.federation_.join(rows)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a federation to predict with."""
        return "federation_" in vars(self)

    def _train(self, checked: Checked, classes: int | None) -> Self:
        """Train on checked rows.

        Args:
            checked: the rows.
            classes: number of classes; None of a regression.

        Returns:
            The estimator.

        Warns:
            UserWarning: when a federation would have a single client because nobody said whose the rows are.
        """
        seed = self.random_state
        number = seed if isinstance(seed, int | np.integer) else check_random_state(seed).randint(2**31 - 1)
        given = {one.name: getattr(self, one.name) for one in self._options}
        study = parameters.study_of(self._method, self._options, given, int(number), self._task)
        if checked.owners[0] == _ALL and study.recipe.federated:
            what = "all rows count as those of one client: neither groups nor the parameter group says whose they are"
            hint = "cross_val_score(groups=...) tells the splitter alone, group=COLUMN of X says it everywhere"
            warnings.warn(f"{what} ({hint})", stacklevel=caller_stacklevel())
        columns = self._columns(checked.x.shape[1])
        self.federation_ = Fitted.train(study, self._rows(checked), columns, classes)
        return self

    def _rows(self, checked: Checked) -> Rows:
        """Bring checked rows to tensors.

        Args:
            checked: the rows.

        Returns:
            The same, with targets of 0 where there are none.
        """
        x = torch.tensor(np.ascontiguousarray(checked.x), dtype=torch.float64)  # of reversed rows torch takes none
        y = torch.zeros(len(x), dtype=torch.float64) if checked.y is None else self._encoded(checked.y)
        return Rows(x, y, checked.owners)

    @abstractmethod
    def _encoded(self, y: Values) -> Tensor:
        """Bring targets [R] to numbers, float64."""

    def _checked(
        self, X: ArrayLike, groups: ArrayLike | None, *, y: ArrayLike | None = None, reset: bool = False
    ) -> Checked:
        """Check rows as scikit-learn does, and take the column of the groups out.

        Args:
            X: rows [R, d].
            groups: the client of each row [R].
            y: targets [R]; None of rows to predict.
            reset: whether these rows say how many columns there are, and what they are called.

        Returns:
            The rows.

        Raises:
            ValueError: of what cannot be used.
        """
        if reset:
            self.__dict__.pop("federation_", None)  # whose classes and columns are no longer these
        else:
            check_is_fitted(self)
        if len(shape := getattr(X, "shape", ())) > 2:
            what = f"X must be rows of features [R, d], got an array of dim {len(shape)}, {list(shape)}"
            raise ValueError(f"{what}; images are learned by pacbayes_fl.run, of a folder or .npz as [data] source")
        how = {"dtype": np.float64, "ensure_min_samples": _LEAST if reset else 1}
        numeric = {"y_numeric": self._task == "regression"}
        if self.group is None:
            given = (X,) if y is None and not reset else (X, y)
            checked = validate_data(self, *given, reset=reset, **how, **(numeric if given[1:] else {}))
        else:
            if groups is not None:
                raise ValueError(f"groups are given, and group={self.group!r} names a column that holds them")
            if y is None and reset:
                raise ValueError(f"This {type(self).__name__} estimator {_NO_Y}")
            check_feature_names(self, X, reset=reset)
            check_n_features(self, X, reset=reset)
            groups, rest = _taken(X, self.group)
            checked = check_array(rest, **how) if y is None else check_X_y(rest, y, **how, **numeric)
        x, targets = (checked, None) if y is None else checked
        return Checked(x, targets, self._owners(groups, x, reset))

    def _owners(self, groups: ArrayLike | None, x: NDArray[np.float64], reset: bool) -> list[str]:
        if groups is None:
            if not reset and self.clients_[0] != _ALL:
                raise ValueError("groups are needed, which were given to fit: the client of each row")
            return [_ALL] * len(x)
        labels = np.asarray(groups, dtype=object)
        if labels.ndim != 1:
            raise ValueError(f"groups must be [R], the client of each row, got {list(labels.shape)}")
        check_consistent_length(x, labels)
        return [_name(label) for label in labels.tolist()]

    def _columns(self, width: int) -> list[str]:
        """Name the features."""
        names: Sequence[str] | None = getattr(self, "feature_names_in_", None)
        if names is None:
            return [f"x_{k + 1}" for k in range(width)]
        taken = names[self.group] if isinstance(self.group, int) else self.group
        return [str(name) for name in names if name != taken]


def _taken(X: Any, group: str | int) -> tuple[Values, Any]:
    """Take a column out: of a table with names, or of an array."""
    if hasattr(X, "columns"):
        names = [*X.columns]
        _require_place(group, len(names))
        column = names[group] if isinstance(group, int) else group
        if column not in names:
            raise ValueError(f"X has no column {column!r}, which holds the groups; it has {', '.join(map(str, names))}")
        return np.asarray(X[column], dtype=object), X[[name for name in names if name != column]]
    array = np.asarray(X)
    if isinstance(group, str):
        raise ValueError(f"group={group!r} is the name of a column, and X has no names: give its position")
    if array.ndim != 2:
        return np.empty(0), array  # refused as every other array of such a shape
    _require_place(group, array.shape[1])
    return array[:, group], np.delete(array, group, axis=1)


def _require_place(group: str | int, columns: int) -> None:
    if isinstance(group, int) and not -columns <= group < columns:
        raise ValueError(f"group={group} is the position of a column, and X has {columns}")


def _name(label: object) -> str:
    """Name a client: 3 and 3.0 are the same."""
    if label is None or type(label).__name__ in ("NAType", "NaTType") or label != label:
        raise ValueError("groups must name a client in every row, got a missing value")
    name = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
    if not name.strip():
        raise ValueError("groups must name a client in every row, got a blank name")
    return name

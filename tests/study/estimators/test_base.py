"""The estimators keep the contract of scikit-learn, and say by name what they cannot use."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pacbayes_fl as fl
from tests.study.estimators.conftest import NETWORK, OPEN, SMALL, Table

TINY: dict[str, Any] = {"rounds": 1, "particles": 1, "mean_widths": (2,), "kernel_widths": (2,)}
TINY |= {"scale": "client", "noise_widths": "constant", "residuals": "gaussian"}
CHECKED = (
    fl.PacPFLRegressor(**TINY),  # which leaves one choice to held-out rows
    fl.PFedBayesClassifier(rounds=2, steps=12, zeta=0.1, widths=(8,), rate=0.1, draws=2, dtype="float64"),
)


@pytest.mark.law
@parametrize_with_checks(list(CHECKED[:1]))
def test_the_regressor_passes_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(list(CHECKED[1:]))
def test_the_classifier_passes_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def with_groups(table: Table) -> np.ndarray[Any, Any]:
    """The rows with the client as a number in the middle."""
    number = np.unique(table.client, return_inverse=True)[1]
    return np.column_stack([table.x[:, 0], number, table.x[:, 1]])


def test_a_grid_search_over_a_pipeline_takes_groups_from_a_column(table: Table) -> None:
    model = make_pipeline(StandardScaler(), fl.PacPFLRegressor(group=1, **SMALL))
    search = GridSearchCV(model, {"pacpflregressor__rate": np.array([0.01, 0.1])}, cv=2)
    search.fit(with_groups(table), table.y)
    assert search.best_score_ > 0.0
    assert len(search.best_estimator_[-1].clients_) == 3
    assert search.n_features_in_ == search.best_estimator_[-1].n_features_in_ == 3


class PooledRidge(fl.FederatedRegressor, method="pooled-ridge"):
    """A method of rows in one place."""


def test_a_federation_of_rows_that_are_nobody_s_says_so(table: Table) -> None:
    told = "all rows count as those of one client: neither groups nor the parameter group"
    with pytest.warns(UserWarning, match=told):
        fl.PacPFLRegressor(**SMALL).fit(table.x, table.y)
    with pytest.warns(UserWarning, match=told):  # groups are the splitter's alone
        cross_val_score(fl.PacPFLRegressor(**SMALL), table.x, table.y, groups=table.client, cv=GroupKFold(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.PacPFLRegressor(**SMALL).fit(table.x, table.y, groups=["house"] * len(table.x))
        PooledRidge().fit(table.x, table.y)


def test_groups_are_routed_as_metadata(table: Table) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = fl.PacPFLRegressor(**SMALL).set_fit_request(groups=True).set_predict_request(groups=True)
        model = model.set_score_request(groups=True)
        pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), model)
        pipeline.fit(table.x, table.y, groups=table.client)
        alone = clone(model).fit(
            PolynomialFeatures(2, include_bias=False).fit_transform(table.x), table.y, table.client
        )
        np.testing.assert_array_equal(
            pipeline.predict(table.x, groups=table.client),
            alone.predict(pipeline[0].transform(table.x), table.client),
        )
        folds = {"cv": GroupKFold(3), "params": {"groups": table.client}}
        with pytest.warns(UserWarning, match="the prior's prediction"):  # a fold is a client that never trained
            assert cross_val_score(model, table.x, table.y, **folds).shape == (3,)


def test_the_column_of_groups_may_have_a_name_and_texts(table: Table, fitted: fl.PacPFLRegressor) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra tables")
    frame = pandas.DataFrame({"x_1": table.x[:, 0], "house": table.client, "x_2": table.x[:, 1]})
    model = fl.PacPFLRegressor(group="house", **SMALL).fit(frame, table.y)
    expected = fitted.predict(table.x, groups=table.client)
    np.testing.assert_array_equal(model.predict(frame), expected)
    assert model.feature_names_in_.tolist() == ["x_1", "house", "x_2"]
    assert [column.name for column in model.federation_.trained.dataset.features] == ["x_1", "x_2"]
    np.testing.assert_array_equal(clone(model).set_params(group=1).fit(frame, table.y).predict(frame), expected)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"house": "home"}))


def test_numbers_name_the_clients_that_they_are(table: Table) -> None:
    number = np.unique(table.client, return_inverse=True)[1]
    model = fl.PacPFLRegressor(**SMALL).fit(table.x, table.y, groups=number)
    assert sorted(model.clients_) == ["0", "1", "2"]
    np.testing.assert_array_equal(
        model.predict(table.x, number.astype(float)), model.predict(table.x, number.astype(str))
    )


def test_a_seed_decides_and_a_random_state_draws_it(table: Table) -> None:
    def predicted(state: Any) -> Any:
        return fl.PacPFLRegressor(random_state=state, **SMALL).fit(table.x, table.y).predict(table.x)

    np.testing.assert_array_equal(predicted(np.random.RandomState(3)), predicted(np.random.RandomState(3)))
    assert (predicted(1) != predicted(2)).any()


def test_what_cannot_be_used_is_refused_as_scikit_learn_does(fitted: fl.PacPFLRegressor, table: Table) -> None:
    new, small = fl.PacPFLRegressor(**SMALL), table.x[:4]
    for ask in (new.predict, lambda x: new.join(x, x[:, 0]), lambda x: new.clients_, lambda x: new.study_):
        with pytest.raises(NotFittedError):
            ask(small)
    with pytest.raises(ValueError, match="groups are needed"):
        fitted.predict(small)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.predict(small, groups=["north"])
    with pytest.raises(ValueError, match="missing value"):
        new.fit(small, table.y[:4], groups=["a", None, "a", "a"])
    with pytest.raises(ValueError, match="missing value"):
        new.fit(small, table.y[:4], groups=[1.0, np.nan, 1.0, 1.0])
    with pytest.raises(ValueError, match="blank"):
        new.fit(small, table.y[:4], groups=["a", " ", "a", "a"])
    with pytest.raises(ValueError, match=r"groups must be \[R\]"):
        new.fit(small, table.y[:4], groups=[["a"]] * 4)
    with pytest.raises(ValueError, match="north took part in the training"):
        fitted.join(small, table.y[:4], groups=["north"] * 4)
    with pytest.raises(ValueError, match="names a column"):
        fl.PacPFLRegressor(group=0).fit(small, table.y[:4], groups=["a"] * 4)
    with pytest.raises(ValueError, match="X has no names"):
        fl.PacPFLRegressor(group="house").fit(small, table.y[:4])
    with pytest.raises(ValueError, match="group=7 is the position of a column, and X has 2"):
        fl.PacPFLRegressor(group=7).fit(small, table.y[:4])
    with pytest.raises(ValueError, match="requires y"):
        fl.PacPFLRegressor(group=0).fit(small, None)
    with pytest.raises(ValueError, match=r"rows of features \[R, d\], got an array of dim 4, .* images are learned by"):
        new.fit(np.zeros((4, 1, 8, 8)), table.y[:4])
    with pytest.raises(TypeError, match="unexpected keyword argument 'particle'"):
        fl.PacPFLRegressor(particle=2)
    with pytest.raises(ValueError, match="rate"):
        fl.PacPFLRegressor(rate=-1.0).fit(small, table.y[:4])


def test_a_classifier_names_classes_and_refuses_others(labelled: fl.PFedBayesClassifier, table: Table) -> None:
    assert labelled.classes_.tolist() == ["little", "much"]
    shares = labelled.predict_proba(table.x, groups=table.client)
    np.testing.assert_allclose(shares.sum(1), 1.0, rtol=1e-6)
    assert labelled.score(table.x, table.label, groups=table.client) == np.mean(
        labelled.predict(table.x, groups=table.client) == table.label
    )
    with pytest.raises(ValueError, match="classes that fit has not seen: some"):
        labelled.join(table.x[:2], ["some", "much"], groups=["east"] * 2)
    with pytest.raises(ValueError, match="one class alone"):
        fl.PFedBayesClassifier(**NETWORK).fit(table.x[:4], ["much"] * 4)


def test_a_fit_that_fails_leaves_no_model_of_other_classes(labelled: fl.PFedBayesClassifier, table: Table) -> None:
    model = copy.deepcopy(labelled)
    renamed = np.where(table.label == "much", "a lot", "some")
    with pytest.raises(ValueError, match="rate"):
        model.set_params(rate=-1.0).fit(table.x, renamed, groups=table.client)
    with pytest.raises(NotFittedError):
        model.predict(table.x[:3], groups=table.client[:3])
    assert labelled.predict(table.x[:1], groups=table.client[:1])[0] in ("little", "much")


@pytest.mark.law
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda x, y: (x[:2], y[:2]), id="two rows"),
        pytest.param(lambda x, y: (np.repeat(x[:3], 3, 0), np.repeat(y[:3], 3)), id="every row three times"),
        pytest.param(lambda x, y: (np.column_stack([x, np.ones(22)]), y), id="a constant column"),
        pytest.param(lambda x, y: (x, np.ones(22)), id="a constant target"),
        pytest.param(lambda x, y: (x * 1e12, y * 1e-12), id="huge inputs, tiny targets"),
        pytest.param(lambda x, y: (x * 1e-12, y * 1e12), id="tiny inputs, huge targets"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_odd_rows_are_learned(rows: Any, table: Table) -> None:
    x, y = rows(table.x, table.y)
    mean, std = fl.PacPFLRegressor(**OPEN).fit(x, y).predict(x, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    assert np.abs(mean - y).max() <= 10 * np.abs(y).max()


def test_reversed_rows_are_rows(table: Table) -> None:
    x, y, client = table.x[::-1], table.y[::-1], table.client[::-1]
    model, same = (fl.PacPFLRegressor(**SMALL).fit(*rows) for rows in ((x, y, client), (x.copy(), y.copy(), client)))
    assert np.array_equal(model.predict(x, groups=client), same.predict(x.copy(), groups=client))


class PFedGP(fl.FederatedRegressor, method="pfedgp"):
    """Of a user."""


def test_any_method_is_an_estimator_by_its_name(table: Table) -> None:
    model = PFedGP(rounds=2, init_std=0.1).fit(table.x, table.y, groups=table.client)
    assert model.study_.method.name == "pfedgp" and np.isfinite(model.predict(table.x, groups=table.client)).all()


@pytest.mark.parametrize("base", [fl.FederatedRegressor, fl.FederatedClassifier])
def test_an_estimator_of_no_method_says_how_to_name_one(base: type) -> None:
    with pytest.raises(
        TypeError, match=rf"{base.__name__} is of no method: `class Mine\({base.__name__}, method='ridge'\)"
    ):
        base(method="ridge")

"""Predictions of a finished run, for its own clients and for new ones, against the run's report and by hand."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV

from pacbayes_fl.errors import DamageWarning, DataError
from pacbayes_fl.results import records as results
from pacbayes_fl.study import run
from pacbayes_fl.study.serving.predict import Prediction, join, predict
from tests.tiny import Row, on_csv, rows, write_csv

ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
NAN = float("nan")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], run.Trained]:
    """Return trained federations on the ragged table by the name of their method, from their folders."""
    root = tmp_path_factory.mktemp("predict")
    path = write_csv(root / "rows.csv", rows())

    def get(method: str) -> run.Trained:
        if not (root / method).exists():
            run.run(on_csv(path, f"method.name={method}"), root / method)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return run.open_run(root / method)

    return get


def of(client: str, part: str | None = None) -> list[Row]:
    return [row for row in rows() if row["client"] == client and part in (None, row["split"])]


def ask(table: list[Row], *columns: str) -> list[Row]:
    """Keep some columns, without the word on the split."""
    return [{name: row[name] for name in (columns or ("client", "lag_1", "wind", "y"))} for row in table]


def reported(method: str, client: str, runs: Callable[[str], run.Trained]) -> dict[str, torch.Tensor]:
    """Return what the run itself predicted for a client's test rows."""
    result = run.report(runs(method))
    group = "new" if client.startswith("new") else "existing"
    names = [row.name for row in result.clients if row.group == group]
    flat = result.predictions
    k = names.index(client)
    mask = flat[f"{group}.mask_test"][k]
    return {name: flat[f"{group}.{name}"][k][mask] for name in ("mean", "std", "lower", "upper")}


def assert_prediction(got: Prediction, expected: dict[str, torch.Tensor]) -> None:
    for name, values in expected.items():
        torch.testing.assert_close(getattr(got, name), values, rtol=1e-9, atol=1e-9)


@pytest.mark.law
@pytest.mark.parametrize("method", ["pac-pfl", "pooled-ridge", "persistence"])
@pytest.mark.parametrize("client", ["existing_0", "existing_2", "new_1"])
def test_predicting_test_rows_gives_what_the_run_reported(
    runs: Callable[[str], run.Trained], tmp_path: Path, method: str, client: str
) -> None:
    path = write_csv(tmp_path / "ask.csv", ask(of(client, "test"), "client", "lag_1", "wind"))
    got = predict(runs(method), client, path)
    assert got.client == client
    assert_prediction(got, reported(method, client, runs))


def test_other_clients_rows_do_not_count_and_without_a_client_column_all_are_its_own(
    runs: Callable[[str], run.Trained], tmp_path: Path
) -> None:
    expected = reported("pac-pfl", "existing_1", runs)
    mixed = write_csv(tmp_path / "mixed.csv", ask([*of("existing_0"), *of("existing_1", "test"), *of("new_0")]))
    assert_prediction(predict(runs("pac-pfl"), "existing_1", mixed), expected)
    alone = write_csv(tmp_path / "alone.csv", ask(of("existing_1", "test"), "wind", "lag_1"))  # in another order too
    assert_prediction(predict(runs("pac-pfl"), "existing_1", alone), expected)


@pytest.mark.law
@pytest.mark.parametrize("method", ["pac-pfl", "ridge", "persistence"])
@pytest.mark.parametrize("mark", ["empty", "nan", "split"])
def test_a_client_that_joins_is_treated_like_a_new_client_of_the_run(
    runs: Callable[[str], run.Trained], tmp_path: Path, method: str, mark: str
) -> None:
    """The same rows under the run's `new` group and through `join`: training rows with, test rows without target."""
    if mark == "split":
        table = [row for row in rows() if row["group"] == "new"]
    else:
        hide: float | str = "nan" if mark == "nan" else NAN
        table = ask([r | {"y": hide if r["split"] == "test" else r["y"]} for r in rows() if r["group"] == "new"])
    got = join(runs(method), write_csv(tmp_path / "new.csv", table))
    assert list(got) == ["new_0", "new_1"]
    for client in got:
        assert_prediction(got[client], reported(method, client, runs))


def test_without_rows_to_predict_a_client_that_joins_gets_its_own_rows(
    runs: Callable[[str], run.Trained], tmp_path: Path
) -> None:
    own = ask(of("new_0", "train"))
    got = join(runs("pac-pfl"), write_csv(tmp_path / "a.csv", own))["new_0"]
    twice = join(runs("pac-pfl"), write_csv(tmp_path / "b.csv", [*own, *(row | {"y": NAN} for row in own)]))["new_0"]
    assert_prediction(got, {name: getattr(twice, name) for name in ("mean", "std", "lower", "upper")})


def test_a_client_without_a_target_gets_the_priors_prediction(
    runs: Callable[[str], run.Trained], tmp_path: Path
) -> None:
    trained = runs("pac-pfl")
    x = torch.tensor([[0.1, -0.4], [1.2, 0.3]], dtype=torch.float64)
    table: list[Row] = [{"client": "fresh", "lag_1": a, "wind": b, "y": NAN} for a, b in x.tolist()]
    with pytest.warns(UserWarning, match="fresh has no rows with a target: the prior's prediction"):
        got = join(trained, write_csv(tmp_path / "fresh.csv", table))["fresh"]
    particles = trained.state.server.particles
    units = trained.groups["existing"].units
    scaled = (x - units.x_mean.mean(0)) / units.x_std.mean(0)
    mean = trained.method.model.mean(particles.unsqueeze(0), scaled.unsqueeze(0))  # type: ignore[attr-defined]
    loc, scale = units.y_mean.mean(), units.y_std.mean()
    torch.testing.assert_close(got.mean, loc + scale * mean[0].mean(0), rtol=1e-9, atol=1e-12)
    noise = trained.method.model.noise(particles.unsqueeze(0), scaled.unsqueeze(0))[0]  # type: ignore[attr-defined]
    prior = trained.method.model.variance(particles.unsqueeze(0), scaled.unsqueeze(0))[0]  # type: ignore[attr-defined]
    second = (prior + noise + mean[0].square()).mean(0)
    variance = scale.square() * (second - mean[0].mean(0).square())
    torch.testing.assert_close(got.std.square(), variance, rtol=1e-9, atol=1e-9)
    assert (got.lower < got.mean).all() and (got.mean < got.upper).all()


def test_later_rows_are_conditioned_on_in_the_units_of_the_training(
    runs: Callable[[str], run.Trained], tmp_path: Path
) -> None:
    """Ridge by hand: standardised by the training rows alone, fitted to training and later rows together."""
    train, test = of("existing_1", "train"), of("existing_1", "test")
    later = [row | {"y": row["y"] + 40.0} for row in test[:2]]
    got = predict(
        runs("ridge"),
        "existing_1",
        write_csv(tmp_path / "ask.csv", ask(test[2:], "lag_1", "wind")),
        write_csv(tmp_path / "later.csv", ask(later)),
    )
    old, both, asked = (
        np.array([[row["lag_1"], row["wind"], row["y"]] for row in part])
        for part in (train, [*train, *later], test[2:])
    )
    loc, std = old.mean(0), old.std(0)
    both, asked = (both - loc) / std, (asked - loc) / std
    ridge = RidgeCV(alphas=ALPHAS).fit(both[:, :2], both[:, 2])
    mean = torch.from_numpy(loc[2] + std[2] * ridge.predict(asked[:, :2]))
    torch.testing.assert_close(got.mean, mean, rtol=1e-9, atol=0.0)
    assert not torch.allclose(got.mean, reported("ridge", "existing_1", runs)["mean"][2:], rtol=1e-4)


def test_later_rows_of_one_client_sharpen_its_prediction(runs: Callable[[str], run.Trained], tmp_path: Path) -> None:
    test = of("new_0", "test")
    path = write_csv(tmp_path / "ask.csv", ask(test, "lag_1", "wind"))
    before = predict(runs("pac-pfl"), "new_0", path)
    after = predict(runs("pac-pfl"), "new_0", path, write_csv(tmp_path / "later.csv", ask(test)))
    y = torch.tensor([row["y"] for row in test], dtype=torch.float64)
    assert (after.mean - y).square().mean() < (before.mean - y).square().mean()


def test_rows_that_cannot_be_used_are_refused_with_the_client(
    runs: Callable[[str], run.Trained], tmp_path: Path
) -> None:
    trained, test = runs("pac-pfl"), ask(of("existing_0", "test"))
    path = write_csv(tmp_path / "ask.csv", test)
    with pytest.raises(DataError, match=r"client 'nobody': the run does not know it \(it knows [\w, ]+\)$"):
        predict(trained, "nobody", path)
    with pytest.raises(DataError, match=r"client 'existing_1': .*ask\.csv has no rows of it"):
        predict(trained, "existing_1", path)
    with pytest.raises(DataError, match=r"client 'existing_0': .*later\.csv has no rows of it"):
        predict(trained, "existing_0", path, write_csv(tmp_path / "later.csv", ask(of("new_0"))))
    with pytest.raises(DataError, match=r"client 'existing_0': .*later\.csv line 2: column 'y' has no value"):
        predict(trained, "existing_0", path, write_csv(tmp_path / "later.csv", [test[0] | {"y": NAN}]))
    with pytest.raises(DataError, match=r"client 'existing_0': .*bad\.csv line 3, column 'wind': nan is not a finite"):
        predict(trained, "existing_0", write_csv(tmp_path / "bad.csv", [test[0], test[1] | {"wind": "nan"}]))
    gap = write_csv(tmp_path / "gap.csv", [test[0], test[1] | {"wind": ""}])
    said = r"gap\.csv line 3, column 'wind': '' is not a number \(mend the row or leave it out: this run keeps"
    with pytest.raises(
        DataError, match=said + r" the \[data\] of its training; of another, data.missing = 'drop' leaves"
    ):
        predict(trained, "existing_0", gap)
    less = write_csv(tmp_path / "less.csv", ask(of("existing_0"), "client", "wind", "y"))
    with pytest.raises(DataError, match=r"less\.csv has no column 'lag_1' \(it has client, wind, y\)"):
        predict(trained, "existing_0", less)
    with pytest.raises(DataError, match="has no column 'y'"):
        join(trained, write_csv(tmp_path / "no_target.csv", ask(of("new_0"), "client", "lag_1", "wind")))


def test_columns_that_the_run_does_not_know_are_ignored(runs: Callable[[str], run.Trained], tmp_path: Path) -> None:
    trained, own = runs("pac-pfl"), ask(of("new_0"))
    plain = write_csv(tmp_path / "plain.csv", own)
    more = write_csv(tmp_path / "more.csv", [{"sun": "bright", **row} for row in own])
    assert torch.equal(join(trained, more)["new_0"].std, join(trained, plain)["new_0"].std)
    assert torch.equal(predict(trained, "new_0", more).mean, predict(trained, "new_0", plain).mean)  # type: ignore[union-attr]


def test_a_client_that_joins_with_bad_rows_is_refused(runs: Callable[[str], run.Trained], tmp_path: Path) -> None:
    own = ask(of("new_0"))
    with pytest.raises(DataError, match=r"client 'new_0': .*x\.csv line 4, column 'lag_1': nan is not a finite"):
        join(runs("pac-pfl"), write_csv(tmp_path / "x.csv", [*own[:2], own[2] | {"lag_1": "nan"}, *own[3:]]))
    with pytest.raises(
        DataError, match=r"client 'new_0': .*y\.csv line 4, column 'y': inf is not a finite"
    ):  # no request to predict
        join(runs("pac-pfl"), write_csv(tmp_path / "y.csv", [*own[:2], own[2] | {"y": "inf"}, *own[3:]]))


def test_one_row_is_enough_to_join(runs: Callable[[str], run.Trained], tmp_path: Path) -> None:
    first, second = ask(of("new_0"))[:2]
    with pytest.warns(UserWarning, match="targets of new_0 do not vary: left unscaled"):
        got = join(runs("pac-pfl"), write_csv(tmp_path / "one.csv", [first, second | {"y": NAN}]))["new_0"]
    assert got.mean.shape == (1,) and got.mean.isfinite().all() and (got.std > 0).all()


def test_predictions_need_the_folder_alone(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(finished, folder)
    derived = ("predictions.safetensors", "metrics.json", "labels.json", "clients.csv", "environment.json")
    for name in derived:
        (folder / name).unlink()
    result = results.load(finished)
    x = result.predictions["existing.x_test"][2, :, 0]
    path = write_csv(tmp_path / "ask.csv", [{"x": value} for value in x.tolist()])
    with pytest.warns(DamageWarning) as said:
        got = predict(run.open_run(folder), "poly_02", path)
    assert sorted(str(one.message).split()[0] for one in said) == sorted(str(folder / name) for name in derived)
    torch.testing.assert_close(got.mean, result.predictions["existing.mean"][2], rtol=1e-9, atol=1e-9)

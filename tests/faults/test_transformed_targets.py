"""Studies whose models learn a transform of the target: predictions, scores and messages are of the target itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.errors import DataError, NumericalError, StudyError
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study import run
from pacbayes_fl.study.serving import release
from pacbayes_fl.study.serving.forecast import forecast
from pacbayes_fl.study.serving.newcomers import forecast_newcomers
from pacbayes_fl.study.serving.predict import join, predict
from tests.tiny import Row, on_csv, quick, rows, write_csv

SETS = ("method.name=ridge", "data.transform=log1p")


def prices(path: Path) -> Path:
    """Rows of houses whose prices are lognormal."""
    random = np.random.default_rng(4)
    table: list[Row] = []
    for group, clients in (("existing", 4), ("new", 2)):
        for k in range(clients):
            for i, size in enumerate(random.uniform(-1, 1, size=30)):
                y = float(np.expm1(1.0 + 0.2 * k + size + 0.5 * random.normal()))
                split = {"split": "test" if i >= 18 else "train", "group": group}
                table.append({"client": f"{group}_{k}", "size": size, "y": y} | split)
    return write_csv(path, table)


def own_rows(path: Path, client: str) -> list[dict[str, str]]:
    with path.open() as file:
        return [
            {k: v for k, v in row.items() if k != "group"} for row in csv.DictReader(file) if row["client"] == client
        ]


@pytest.mark.law
@pytest.mark.parametrize("scale", ["client", "pooled", "shrunk", "none"])
def test_predictions_and_scores_are_of_the_target(tmp_path: Path, scale: str) -> None:
    path = prices(tmp_path / "rows.csv")
    plain = run.run(on_csv(path, "method.name=ridge", f"data.scale={scale}"))
    done = run.run(on_csv(path, *SETS, f"data.scale={scale}"), tmp_path / "run")
    logs = [row | {"y": str(np.log1p(float(row["y"])))} for row in csv.DictReader(path.open())]
    by_hand = run.run(on_csv(write_csv(tmp_path / "logs.csv", logs), "method.name=ridge", f"data.scale={scale}"))
    for group in ("existing", "new"):
        for number in ("lower", "upper"):
            values = done.predictions[f"{group}.{number}"]
            torch.testing.assert_close(values, torch.expm1(by_hand.predictions[f"{group}.{number}"]), equal_nan=True)
        y, mask = (done.predictions[f"{group}.{name}_test"] for name in ("y", "mask"))
        error = torch.where(mask, y - done.predictions[f"{group}.mean"], 0.0).square().sum(1) / mask.sum(1)
        assert done.column(group, "rmse_raw") == pytest.approx(error.sqrt().tolist())
        slope = torch.where(mask, torch.log1p(y), 0.0).sum(1) / mask.sum(1)
        jacobian = np.array(by_hand.column(group, "nlpd_raw")) + slope.numpy()
        assert np.array(done.column(group, "nlpd_raw")) == pytest.approx(jacobian)
        assert np.mean(done.column(group, "nlpd")) < np.mean(plain.column(group, "nlpd"))
    assert done.labels["scaling"]["transform"].startswith("t = ln(1 + y) is learned")
    own = own_rows(path, "new_1")
    got = join(run.open_run(tmp_path / "run"), write_csv(tmp_path / "new.csv", own))["new_1"]
    for name in ("mean", "std", "lower", "upper"):
        torch.testing.assert_close(getattr(got, name), done.predictions[f"new.{name}"][1][:12], rtol=1e-9, atol=1e-9)
    none = write_csv(tmp_path / "none.csv", [row | {"y": "", "split": "test"} for row in own])
    if scale != "none":
        with pytest.warns(UserWarning, match="no rows with a target"):
            empty = join(run.open_run(tmp_path / "run"), none)["new_1"]
        assert -1 < float(empty.lower.min()) and float(empty.upper.max()) < 100


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["log1p", "logit"])
def test_learning_is_that_on_a_file_of_transformed_targets(tmp_path: Path, transform: str) -> None:
    """From the ridge start over summaries of clients to predictions; scores while it learns are of the target."""
    path, bounds = prices(tmp_path / "rows.csv"), ("data.lower_bound=-1", "data.upper_bound=500")
    sets = (*quick("pac-pfl"), "model.linear=ridge", "data.client_inputs=summaries", "federation.rounds=3")
    one = on_csv(path, *sets, f"data.transform={transform}", *(bounds if transform == "logit" else ()))
    done, of = run.run(one, tmp_path / "run"), one.data.target_transform
    assert of is not None
    moved = [
        row | {"y": of.forward(torch.tensor(float(row["y"]), dtype=torch.float64)).item()}
        for row in csv.DictReader(path.open())
    ]
    by_hand = run.run(on_csv(write_csv(tmp_path / "moved.csv", moved), *sets))
    for name in ("existing.lower", "existing.upper", "new.lower", "new.upper"):
        torch.testing.assert_close(done.predictions[name], of.inverse(by_hand.predictions[name]), equal_nan=True)
    last = read_rounds(tmp_path / "run")[-1].values["rsmse"]
    assert last == pytest.approx(np.mean(done.column("existing", "rsmse")), rel=1e-9)
    assert last != pytest.approx(np.mean(by_hand.column("existing", "rsmse")), rel=1e-3)


def test_targets_that_have_no_transform_are_refused_by_client_and_value(tmp_path: Path) -> None:
    path = prices(tmp_path / "rows.csv")
    run.run(on_csv(path, *SETS), tmp_path / "run")
    own = own_rows(path, "new_1")
    own[3]["y"] = "-1.5"
    with pytest.raises(
        DataError, match=r"'new_1': has a target of -1.5 \(line 5\), and data.transform = 'log1p' takes"
    ):
        join(run.open_run(tmp_path / "run"), write_csv(tmp_path / "low.csv", own))
    later = write_csv(tmp_path / "later.csv", [{"size": 0.1, "y": -1.0}])
    with pytest.raises(DataError, match=r"'existing_0': has a target of -1 \(line 2\), and"):
        predict(run.open_run(tmp_path / "run"), "existing_0", later, later)
    high = next(i for i, row in enumerate(csv.DictReader(path.open()), 2) if float(row["y"]) >= 2)
    with pytest.raises(DataError, match=rf"\(line {high}\), .*'logit' takes those above 0 and below 2 alone"):
        run.run(on_csv(path, *SETS, "data.transform=logit", "data.lower_bound=0", "data.upper_bound=2"))
    with pytest.raises(StudyError, match="'logit' needs lower_bound and upper_bound"):
        on_csv(path, "data.transform=logit", "data.lower_bound=0")
    labelled = write_csv(tmp_path / "labels.csv", [row | {"y": i % 3} for i, row in enumerate(rows())])
    with pytest.raises(StudyError, match="of numbers, and targets are labels"):
        run.run(on_csv(labelled, "method.name=fedavg", "data.task=classification", "data.transform=log1p"))


@pytest.mark.law
@pytest.mark.parametrize(
    "sets",
    [("logit", "data.lower_bound=-2", "data.upper_bound=1000"), ("yeo-johnson",), ("log1p", "data.lower_bound=-0.5")],
)
def test_a_gaussian_process_goes_on_with_a_transform_and_is_read_again(tmp_path: Path, sets: tuple[str, ...]) -> None:
    path = prices(tmp_path / "rows.csv")
    chosen = (*quick("pac-pfl"), f"data.transform={sets[0]}", *sets[1:], "report.intervals=conformal")
    study = on_csv(path, *chosen, "federation.rounds=2", "federation.checkpoint_every=1")
    done = run.run(study, tmp_path / "run")
    half = run.run(on_csv(path, *chosen, "federation.rounds=1", "federation.checkpoint_every=1"), tmp_path / "half")
    assert half.labels["scaling"] == done.labels["scaling"]
    on = run.run(study, tmp_path / "half", resume=True)
    for name, values in done.predictions.items():
        torch.testing.assert_close(on.predictions[name], values, rtol=0, atol=0, equal_nan=True)
    lower, mean, upper = (done.predictions[f"new.{name}"].nan_to_num() for name in ("lower", "mean", "upper"))
    assert (lower <= mean).all() and (mean <= upper).all()
    known = json.loads((tmp_path / "run" / "scaling.json").read_text())["transform"]
    assert known["name"] == sets[0]
    release.release(tmp_path / "run", tmp_path / "released")
    new = write_csv(tmp_path / "new.csv", own_rows(path, "new_1"))
    torch.testing.assert_close(
        join(release.open_release(tmp_path / "released"), new)["new_1"].upper, upper[1][:12], rtol=1e-7, atol=1e-7
    )


@pytest.mark.slow
def test_a_power_that_is_learned_is_that_number_wherever_the_run_is_used(tmp_path: Path) -> None:
    """The run, its resumption, joins, predictions and its release are those of a study that gives the power."""
    path, sets = prices(tmp_path / "rows.csv"), (*quick("pac-pfl"), "data.transform=yeo-johnson")
    sets = (*sets, "federation.rounds=2", "federation.checkpoint_every=1")
    learned = on_csv(path, *sets, "data.transform_lambda=learned")
    done = run.run(learned, tmp_path / "run")
    power = json.loads((tmp_path / "run" / "scaling.json").read_text())["transform"]["power"]
    assert 0 <= power < 0.5 and f"lambda = {power:g}" in done.labels["scaling"]["transform"]
    given = run.run(on_csv(path, *sets, f"data.transform_lambda={power!r}"), tmp_path / "given")
    half = on_csv(path, *sets, "data.transform_lambda=learned", "federation.rounds=1")
    run.run(half, tmp_path / "half")
    on = run.run(learned, tmp_path / "half", resume=True)
    for name, values in given.predictions.items():
        torch.testing.assert_close(done.predictions[name], values, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(on.predictions[name], values, rtol=0, atol=0, equal_nan=True)
    assert done.clients == given.clients == on.clients
    own = own_rows(path, "new_1")
    new, later = write_csv(tmp_path / "new.csv", own), write_csv(tmp_path / "later.csv", own_rows(path, "existing_0"))
    release.release(tmp_path / "run", tmp_path / "released")
    joined = [join(run.open_run(tmp_path / name), new)["new_1"].upper for name in ("run", "given")]
    joined.append(join(release.open_release(tmp_path / "released"), new)["new_1"].upper)
    torch.testing.assert_close(joined[0], joined[1], rtol=0, atol=0)
    torch.testing.assert_close(joined[0], joined[2], rtol=1e-9, atol=1e-9)
    one, other = (predict(run.open_run(tmp_path / name), "existing_0", later).mean for name in ("run", "given"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_means_that_are_too_large_for_a_number_are_said_by_client_with_the_bound_that_ends_them(tmp_path: Path) -> None:
    """Targets over 150 powers of ten: of a logarithm of such a spread the mean is infinite, and quantiles are not."""
    random = np.random.default_rng(0)
    table: list[Row] = []
    for k in range(3):
        for i, x in enumerate(random.uniform(size=40)):
            y = 10.0 ** (140 * x + 20 * random.normal()) if k else x + 0.1 * random.normal()
            table.append(
                {
                    "client": f"c{k}",
                    "x": x,
                    "cap": 9e149,
                    "y": min(y, 9e149),
                    "split": "test" if i % 4 == 3 else "train",
                }
            )
    path = write_csv(tmp_path / "rows.csv", table)
    sets = ("method.name=ridge", "data.transform=yeo-johnson", "data.transform_lambda=0")
    with pytest.warns(UserWarning, match=r"of 'c1', 'c2' are too large for a number, .* data\.upper_bound"):
        done = run.run(on_csv(path, *sets), tmp_path / "run")
    assert [np.isinf(value) for value in done.column("existing", "rmse_raw")] == [False, True, True]
    ask = write_csv(tmp_path / "ask.csv", [{"client": "c1", "x": 0.5, "cap": 9e149}])
    trained, new = run.open_run(tmp_path / "run"), [row | {"client": "new"} for row in table if row["client"] == "c1"]
    bound = r"is not finite .* \(t = .* a run with data\.upper_bound"
    with pytest.raises(NumericalError, match=bound):
        forecast(trained, ask)
    with pytest.raises(NumericalError, match=bound):
        predict(trained, "c1", ask)
    with pytest.raises(NumericalError, match=bound):
        forecast_newcomers(trained, write_csv(tmp_path / "new.csv", new))
    ended = run.run(on_csv(path, *sets, "data.upper_bound=cap"))
    assert np.isfinite(ended.column("existing", "rmse_raw")).all()


@pytest.mark.slow
def test_standard_deviations_that_say_little_are_named_where_they_are_written(tmp_path: Path) -> None:
    path = prices(tmp_path / "rows.csv")
    sets = (*quick("pac-pfl"), "data.transform=yeo-johnson", "model.likelihood=student-t", "federation.rounds=1")
    with pytest.warns(UserWarning, match="targets have no variance"):
        run.run(on_csv(path, *sets), tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    with pytest.warns(UserWarning, match="targets have no variance"):
        forecast(trained, write_csv(tmp_path / "ask.csv", [{"client": "existing_0", "size": 0.5}]))
    own = [row | {"client": "newcomer"} for row in own_rows(path, "new_1")]
    with pytest.warns(UserWarning, match="targets have no variance"):
        forecast_newcomers(trained, write_csv(tmp_path / "new.csv", own))

"""The shape of errors in runs: learned after the rounds, kept, read, released, and refused where it cannot be had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.errors import DataError, PrivacyError, StudyError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.posteriors.residuals import histogram, recalibrated, standard_normal
from pacbayes_fl.results import records as results
from pacbayes_fl.study import residuals, run
from pacbayes_fl.study.search import held_out
from pacbayes_fl.study.serving import release
from pacbayes_fl.study.serving.predict import Prediction, join, predict
from tests.tiny import assert_same_results, on_csv, quick, rows, write_csv

MIXTURE = ("model.residuals=mixture", "federation.rounds=4")
GPS = ("pac-pfl", "pfedgp", "vanilla-gp", "pooled-gp")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("residuals") / "rows.csv", rows())


@pytest.fixture(scope="module")
def folder(table: Path) -> Path:
    run.run(on_csv(table, *MIXTURE), table.parent / "run")
    return table.parent / "run"


@pytest.mark.parametrize("name", GPS)
def test_means_stay_and_the_spread_changes_for_existing_and_new_clients(table: Path, name: str) -> None:
    plain, mixture = (run.run(on_csv(table, *quick(name), *sets)) for sets in (MIXTURE[1:], MIXTURE))
    for group in ("existing", "new"):
        mine, theirs = ({n: one.predictions[f"{group}.{n}"] for n in ("mean", "std")} for one in (mixture, plain))
        torch.testing.assert_close(mine["mean"], theirs["mean"], equal_nan=True)
        assert not torch.equal(mine["std"], theirs["std"])
        torch.testing.assert_close(plain.column(group, "rsmse"), mixture.column(group, "rsmse"), rtol=1e-12, atol=0.0)
        assert plain.column(group, "nlpd") != mixture.column(group, "nlpd")
    assert "residuals" not in plain.labels and "0.5 of them the federation's" in str(mixture.labels["residuals"])


def test_what_is_learned_is_the_mean_of_histograms_and_a_standard_normal_whatever_the_chunks(folder: Path) -> None:
    trained = run.open_run(folder)
    group, plan = trained.groups["existing"], trained.study.plan
    (_, posterior), *_ = personalisation.personalise(trained.method, trained.state, group.train, plan)
    assert trained.errors.others is not None
    sent = histogram(posterior.leave_one_out())
    expected = torch.cat((sent, standard_normal(sent).unsqueeze(0))).mean(0)
    torch.testing.assert_close(trained.errors.others, expected)
    one = replace(trained.study, federation=replace(trained.study.federation, chunk=1))
    again = residuals.learn(one, trained.method, trained.state, group).others
    assert again is not None
    torch.testing.assert_close(again, trained.errors.others)
    mine = recalibrated(posterior, trained.errors.others).predict(group.test.x)
    theirs = trained.errors.around(posterior).predict(group.test.x)
    assert torch.equal(mine.variances, theirs.variances)


def test_a_saved_run_predicts_as_it_reported_and_its_release_serves_new_clients_alike(
    folder: Path, table: Path, tmp_path: Path
) -> None:
    trained, result = run.open_run(folder), results.load(folder)
    for client, group, k in (("existing_1", "existing", 1), ("new_0", "new", 0)):
        mask = result.predictions[f"{group}.mask_test"][k]
        got = predict(trained, client, result.predictions[f"{group}.x_test"][k][mask])
        for name in ("mean", "std", "lower", "upper"):
            torch.testing.assert_close(getattr(got, name), result.predictions[f"{group}.{name}"][k][mask])
    assert release.release(folder, tmp_path / "out")
    known = [{k: v for k, v in row.items() if k not in ("split", "group")} for row in rows()[:5]]
    later = [{**row, "client": "later", "y": row["y"] if k else float("nan")} for k, row in enumerate(known)]
    path = write_csv(tmp_path / "later.csv", later)
    (mine,), (theirs,) = (join(one, path).values() for one in (trained, release.open_release(tmp_path / "out")))
    torch.testing.assert_close(mine.upper, theirs.upper, rtol=0.0, atol=0.0)
    nobody = write_csv(tmp_path / "none.csv", [{**r, "y": float("nan")} for r in later[:1]])
    with pytest.warns(UserWarning, match="no rows with a target"):
        (empty,) = join(trained, nobody).values()
    assert bool((empty.lower < empty.mean).all())


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(folder: Path, table: Path, tmp_path: Path) -> None:
    run.run(on_csv(table, MIXTURE[0], "federation.rounds=2"), tmp_path / "run")
    before = (tmp_path / "run" / residuals.FILE).read_bytes()
    run.run(on_csv(table, *MIXTURE), tmp_path / "run", resume=True)
    assert_same_results(tmp_path / "run", folder)
    now = (tmp_path / "run" / residuals.FILE).read_bytes()
    assert now == (folder / residuals.FILE).read_bytes() != before


def test_rows_that_chose_the_rounds_are_half_of_the_federations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the run comes to its end at once, is opened without it, or goes on."""
    monkeypatch.setattr(held_out, "candidates", lambda *_: (2, 4))
    source = write_csv(tmp_path / "rows.csv", rows())
    study = on_csv(source, "model.residuals=mixture", "federation.rounds=held-out")
    result = run.run(study, tmp_path / "run")
    held = torch.tensor(result.labels["federation.rounds"]["errors"], dtype=torch.float64)
    trained = run.open_run(tmp_path / "run")
    own = residuals.learn(trained.study, trained.method, trained.state, trained.groups["existing"]).others
    assert trained.errors.others is not None and own is not None
    torch.testing.assert_close(trained.errors.others, 0.5 * (own + held))
    assert "half of these of held-out rows" in str(result.labels["residuals"]) and float(held.sum()) == pytest.approx(1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residuals, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            run.run(study, tmp_path / "killed")
    opened = run.open_run(tmp_path / "killed").errors.others
    run.run(study, tmp_path / "killed", resume=True)
    for others in (opened, run.open_run(tmp_path / "killed").errors.others):
        assert others is not None and torch.equal(others, trained.errors.others)


def test_a_run_that_was_stopped_learns_the_shape_when_it_is_opened(folder: Path, tmp_path: Path) -> None:
    trained = run.open_run(folder)
    state, group = trained.state, trained.groups["existing"]
    expected = trained.errors.others
    assert expected is not None
    stale = residuals.to_json(replace(trained.errors, others=1 - expected), 3)
    for saved in (stale, None):  # of an earlier round, or none at all
        if saved is not None:
            (tmp_path / residuals.FILE).write_bytes(saved)
        result = residuals.recall(trained.study, tmp_path, trained.method, state, group).others
        assert result is not None and torch.equal(result, expected)
        (tmp_path / residuals.FILE).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"round": 4, "others": [1.0]}', '{"round": 4, "others": null}'),
        f'{{"round": 4, "others": {[-1.0] * 128}}}',
    ],
)
def test_a_damaged_file_is_an_error(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / residuals.FILE).write_text(text)
    with pytest.raises(DataError, match="cannot be read"):
        residuals.read(run.open_run(folder).study, tmp_path)


def test_a_release_without_it_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing: it holds the federation's leave-one-out residuals"):
        residuals.read(run.open_run(folder).study, tmp_path)


def test_certificates_are_those_of_the_posterior_itself(table: Path, tmp_path: Path) -> None:
    result = []
    for name, more in (("plain", []), ("mixture", [MIXTURE[0]])):
        sets = ["federation.rounds=2", "report.certify.scheme=split", "report.certify.independent=true", *more]
        run.run(on_csv(table, *sets), tmp_path / name)
        result.append(certify(run.open_run(tmp_path / name)))
    plain, mixture = result
    risks = [[(one.risk, one.kl, one.test_risk) for one in table.clients] for table in (plain, mixture)]
    assert risks[0] == risks[1] and len(risks[0]) == 6


PRIVATE = ("privacy.epsilon=50", "privacy.delta=0.01", "data.scale=client")


def test_a_private_run_releases_its_residuals_once_within_its_budget(table: Path, tmp_path: Path) -> None:
    result = run.run(on_csv(table, *MIXTURE, *PRIVATE), tmp_path / "run")
    said = result.labels["privacy"]
    assert said["releases"] == 5 and said["outside"].keys() == {"residuals"} and 45 < said["epsilon"] <= 50 * (1 + 1e-9)
    assert "4 rounds and outside of them, of residuals (noise of " in said["statement"]
    assert "0.5 of them the federation's, a noisy release;" in str(result.labels["residuals"])
    trained = run.open_run(tmp_path / "run")
    others = trained.errors.others
    assert others is not None and bool((others >= 0).all())
    before = (tmp_path / "run" / residuals.FILE).read_bytes()
    more = run.run(on_csv(table, *MIXTURE, *PRIVATE, "federation.rounds=5"), tmp_path / "run", resume=True)
    assert json.loads(before)["others"] == json.loads((tmp_path / "run" / residuals.FILE).read_bytes())["others"]
    assert more.labels["privacy"]["outside"] == said["outside"] and more.labels["privacy"]["epsilon"] <= 50 * (1 + 1e-9)
    release.release(tmp_path / "run", tmp_path / "out")
    out = release.open_release(tmp_path / "out").errors.others
    assert out is not None and torch.equal(out, others)


def test_shares_of_a_budget_that_rounds_would_take_are_left_to_residuals(table: Path, tmp_path: Path) -> None:
    """With a multiplier of one's own rounds stop where what is left pays for the residuals, and for no more rounds."""
    tight = (*MIXTURE, *PRIVATE, "privacy.multiplier=0.5", "federation.rounds=200")
    with pytest.warns(UserWarning, match="the run ends before its last round"):
        result = run.run(on_csv(table, *tight), tmp_path / "run")
    said = result.labels["privacy"]
    assert said["outside"].keys() == {"residuals"} and said["epsilon"] <= 50 * (1 + 1e-9)
    assert said["rounds"] == said["releases"] - 1 < 200


def test_a_kill_between_the_release_of_residuals_and_their_file_costs_nothing(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, folder = on_csv(table, *MIXTURE, *PRIVATE), tmp_path / "run"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(residuals, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run(study, folder)
    monkeypatch.undo()
    assert run.open_run(folder).errors.others is None, "who opens it pays for nothing"
    paid = (folder / "release_residuals.safetensors").read_bytes()
    result = run.run(study, folder, resume=True)
    assert result.labels["privacy"]["releases"] == 5
    assert (folder / "release_residuals.safetensors").read_bytes() == paid
    assert run.open_run(folder).errors.others is not None


def test_a_private_run_may_learn_from_its_clients_own(table: Path, tmp_path: Path) -> None:
    run.run(on_csv(table, *MIXTURE, *PRIVATE, "model.residual_share=0"), tmp_path / "own")
    assert json.loads((tmp_path / "own" / residuals.FILE).read_text())["others"] is None
    assert run.open_run(tmp_path / "own").errors.others is None
    with pytest.raises(PrivacyError, match=r"residuals = 'mixture' takes .* paper_algorithm_3 does not pay for"):
        run.run(on_csv(table, *MIXTURE, *PRIVATE, "privacy.mechanism=paper_algorithm_3"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_study_that_leaves_the_shape_alone_keeps_no_file(table: Path, tmp_path: Path) -> None:
    run.run(on_csv(table, "federation.rounds=1"), tmp_path / "run")
    assert not (tmp_path / "run" / residuals.FILE).exists()


def test_a_model_without_leave_one_out_residuals_is_refused_by_name(table: Path) -> None:
    trained = run.train(on_csv(table, "method.name=ridge"))
    study = on_csv(table, *MIXTURE)
    with pytest.raises(StudyError, match="has no leave-one-out residuals"):
        residuals.learn(study, trained.method, trained.state, trained.groups["existing"])


def test_held_out_training_rows_may_choose_the_shape(table: Path, tmp_path: Path) -> None:
    result = run.run(on_csv(table, "model.residuals=held-out", "federation.rounds=2"), tmp_path / "run")
    scores = result.labels["model.residuals"]["scores"]
    chosen = result.labels["model.residuals"]["chosen"]
    assert scores.keys() == {"gaussian", "mixture"} and scores[chosen] == max(scores.values())
    assert (tmp_path / "run" / residuals.FILE).exists() == (chosen == "mixture")
    assert run.open_run(tmp_path / "run").errors.mixture == (chosen == "mixture")


# intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pac-pfl", "pooled-gp"])
def test_conformal_intervals_are_those_of_tables_predictions_and_joining_clients(tmp_path: Path, name: str) -> None:
    table = write_csv(tmp_path / "rows.csv", rows(sizes=(30, 12, 26, 25), new=(28, 9)))
    sets = (*quick(name), "federation.rounds=2")
    plain = run.run(on_csv(table, *sets))
    for more in (["report.interval_blocks=5"], []):
        result = run.run(on_csv(table, *sets, "report.intervals=conformal", *more), tmp_path / f"run{len(more)}")
    assert str(result.labels["intervals"]).startswith("jackknife+: at least 90 %")
    for group in ("existing", "new"):
        assert plain.column(group, "nlpd") == result.column(group, "nlpd")
        mine, theirs = (one.predictions[f"{group}.upper"] for one in (result, plain))
        inside = mine.isfinite()
        assert not bool((mine == theirs)[inside].any())
        low, y = result.predictions[f"{group}.lower"], result.predictions[f"{group}.y_test"]
        share = (((low <= y) & (y <= mine)) | ~inside).double().sum(1) - (~inside).sum(1)
        share = share / inside.sum(1)
        assert result.column(group, "coverage_95") == pytest.approx(share.tolist())
    trained = run.open_run(tmp_path / "run0")
    mask = result.predictions["new.mask_test"][0]
    got = predict(trained, "new_0", result.predictions["new.x_test"][0][mask])
    assert isinstance(got, Prediction)
    torch.testing.assert_close(got.upper, result.predictions["new.upper"][0][mask])
    if name == "pac-pfl":
        release.release(tmp_path / "run0", tmp_path / "out")
        known = [{k: v for k, v in row.items() if k not in ("split", "group")} for row in rows(5, (26,), ())]
        later = [{**row, "client": "later", "y": row["y"] if k > 1 else float("nan")} for k, row in enumerate(known)]
        path = write_csv(tmp_path / "later.csv", later)
        (one,), (other,) = (join(at, path).values() for at in (trained, release.open_release(tmp_path / "out")))
        assert isinstance(one, Prediction) and isinstance(other, Prediction)
        assert torch.equal(one.lower, other.lower)


@pytest.mark.parametrize("mechanism", ["gaussian", "paper_algorithm_3"])
def test_intervals_of_a_private_run_rest_on_a_release_or_on_own_rows(
    table: Path, tmp_path: Path, mechanism: str
) -> None:
    sets = (*PRIVATE, "federation.rounds=1", "report.intervals=conformal", f"privacy.mechanism={mechanism}")
    run.run(on_csv(table, *sets), tmp_path / "own")
    shape = run.open_run(tmp_path / "own").errors
    assert shape.conformal and (shape.others is None) == (mechanism != "gaussian")


def test_a_method_that_is_no_gaussian_process_has_no_conformal_intervals(table: Path) -> None:
    for name in ("ridge", "pooled-ridge", "gbt", "pooled-gbt"):
        with pytest.raises(StudyError, match=f"'conformal' needs leave-one-out residuals, which {name} does not have"):
            run.run(on_csv(table, f"method.name={name}", "report.intervals=conformal"))
    with pytest.raises(StudyError, match="which fedavg, a method on networks, does not have"):
        run.run(on_csv(table, "method.name=fedavg", "report.intervals=conformal"))

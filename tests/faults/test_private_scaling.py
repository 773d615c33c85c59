"""Columns scaled across the clients of a private run: one release, paid for once, the same for whoever joins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import CheckpointError, PrivacyError, StudyError
from pacbayes_fl.privacy import mechanisms
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.study import check, residuals, run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.serving import release
from pacbayes_fl.study.serving.predict import Prediction, join, predict
from pacbayes_fl.study.storage.run_folder import RunFolder
from pacbayes_fl.tensors import AnyTree
from tests.tiny import assert_same_results, on_csv, rows, write_csv

RANGES = ("data.ranges.lag_1=[-4, 4]", "data.ranges.wind=[-4, 4]", "data.ranges.y=[-8, 8]")
BUDGET = ("privacy.epsilon_if_noise_were_secret=50", "privacy.delta=0.01", "federation.rounds=2")
KINDS = {
    "shrunk": ("data.scale=shrunk",),
    "pooled": ("data.scale=pooled", "model.residuals=mixture"),
    "summaries": ("data.client_inputs=summaries",),
    "transformed": ("data.scale=shrunk", "data.transform=yeo-johnson", "privacy.mechanism=laplace", "privacy.delta=0"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("private_scaling") / "rows.csv", rows())


def study(table: Path, kind: str = "shrunk", *sets: str) -> Study:
    return on_csv(table, *BUDGET, *RANGES, *KINDS[kind], *sets)


def paid(folder: Path) -> list[str]:
    return [charge.message for charge in Ledger(folder, Budget(1e300, 1e-9)).charges]


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS)
def test_a_private_run_scales_across_clients_and_gives_newcomers_the_same(
    table: Path, tmp_path: Path, kind: str
) -> None:
    one = study(table, kind)
    check.check(one, load(one))
    result = run.run(one, tmp_path / "run")
    said = result.labels["privacy"]
    more = [residuals.MESSAGE] if kind == "pooled" else []
    assert paid(tmp_path / "run") == [scaling.MESSAGE, "round", "round", *more]
    assert list(said["outside"]) == [scaling.MESSAGE, *more] and said["epsilon_if_noise_were_secret"] <= 50 * (1 + 1e-9)
    assert all(torch.isfinite(torch.tensor(result.column(group, "nlpd"))).all() for group in ("existing", "new"))
    trained = run.open_run(tmp_path / "run")
    shared = trained.groups["existing"].shared
    assert shared.average is None and trained.groups["new"].shared == shared
    if kind != "summaries":
        raw = load(one).groups["existing"].train.y
        assert abs(float(shared.mean[-1]) - float(raw.mean())) > 1e-3, "noise is on it"
    mask = result.predictions["new.mask_test"][0]
    got = predict(trained, "new_0", result.predictions["new.x_test"][0][mask])
    assert isinstance(got, Prediction)
    torch.testing.assert_close(got.mean, result.predictions["new.mean"][0][mask])
    release.release(tmp_path / "run", tmp_path / "out")  # needs nobody's word that the moments are public
    known = [{k: v for k, v in row.items() if k not in ("split", "group")} for row in rows(5, (26,), ())]
    later = [{**row, "client": "later", "y": row["y"] if k > 1 else float("nan")} for k, row in enumerate(known)]
    path = write_csv(tmp_path / "later.csv", later)
    (mine,), (theirs,) = (join(at, path).values() for at in (trained, release.open_release(tmp_path / "out")))
    assert isinstance(mine, Prediction) and isinstance(theirs, Prediction) and torch.equal(mine.mean, theirs.mean)


@pytest.mark.law
@pytest.mark.parametrize("stage", ["before the scaling", "before the first checkpoint", "after a round"])
def test_a_crash_at_any_stage_neither_draws_nor_pays_again(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    one, folder = study(table), tmp_path / "run"
    run.run(one, tmp_path / "whole")
    name, at = {"before the scaling": ("open", 1), "before the first checkpoint": ("save", 1)}.get(stage, ("save", 2))
    real, calls = getattr(RunFolder, name), [0]

    def crashing(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(RunFolder, name, crashing)
    with pytest.raises(KeyboardInterrupt):
        run.run(one, folder)
    monkeypatch.undo()
    assert paid(folder)[:1] == [scaling.MESSAGE]
    first = (folder / "release_scaling.safetensors").read_bytes()
    run.run(one, folder, resume=True)
    assert paid(folder) == [scaling.MESSAGE, "round", "round"]
    assert (folder / "release_scaling.safetensors").read_bytes() == first
    assert_same_results(folder, tmp_path / "whole")


def test_what_is_refused_is_refused_before_anything_is_paid_for(table: Path, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="min_clients = 2 would tell"):
        run.run(study(table, "shrunk", "federation.min_clients=2"), tmp_path / "run")
    with pytest.raises(PrivacyError, match="pays for rounds alone, and not for a message on scaling"):
        run.run(study(table, "shrunk", "privacy.mechanism=paper_algorithm_3"), tmp_path / "run")
    with pytest.raises(PrivacyError, match=r"ranges of y: their ends have no finite ln\(1 \+ y\)"):
        run.run(study(table, "shrunk", "data.transform=log1p"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_hostile_client_moves_the_release_by_no_more_than_its_share(tmp_path: Path) -> None:
    """Values of 1e12 count as the ends of the ranges, and the scales of the others stay what they can use."""
    hostile = [row | ({"y": 1e12, "wind": -1e12} if row["client"] == "existing_0" else {}) for row in rows()]
    path = write_csv(tmp_path / "hostile.csv", hostile)
    run.run(study(path, "pooled", "model.residuals=gaussian"), tmp_path / "run")
    shared = run.open_run(tmp_path / "run").groups["existing"].shared
    assert bool((shared.std < 8.0).all()) and bool((shared.mean.abs() <= 8.0).all())


def test_other_ranges_do_not_go_on_with_moments_that_were_paid_for(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash before the first round leaves a run, of which both the study and the release are known."""

    def crashing(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "open", crashing)
    with pytest.raises(KeyboardInterrupt):
        run.run(study(table), tmp_path / "run")
    monkeypatch.undo()
    other = study(table, "shrunk", "data.ranges.y=[-9, 9]")
    with pytest.raises(StudyError, match="holds a run already"):
        run.run(other, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"data\.ranges\.y"):
        run.run(other, tmp_path / "run", resume=True)
    assert paid(tmp_path / "run") == [scaling.MESSAGE]


def nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every release one of noise alone, whatever clients send."""
    real = mechanisms.noisy_mean

    def silent(clipped: AnyTree, *given: Any, **named: Any) -> AnyTree:
        return real(tensors.tree_map(torch.zeros_like, clipped), *given, **named)

    monkeypatch.setattr(mechanisms, "noisy_mean", silent)


@pytest.mark.law
@pytest.mark.parametrize(
    "sets",
    [
        ("data.scale=client", "report.intervals=conformal"),
        ("data.scale=shrunk", "data.transform=yeo-johnson", "model.residuals=mixture", "privacy.clip_quantile=0.5"),
        ("data.scale=pooled", "data.transform=logit", "data.lower_bound=-9", "data.upper_bound=9"),
        ("data.scale=pooled", "data.client_inputs=summaries", "model.noise_widths=[3]", "report.intervals=conformal"),
        ("data.scale=shrunk", "data.upper_bound=8", "model.likelihood=student-t", "model.networks=false"),
        (*KINDS["summaries"], "method.particles=1", "privacy.mechanism=exponential", "privacy.delta=0"),
        ("data.scale=shrunk", "data.client_inputs=summaries", "method.name=pfedbayes", "method.zeta=0.1"),
    ],
    ids=str,
)
def test_rows_reach_what_is_published_by_releases_that_were_paid_for_and_by_no_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...]
) -> None:
    """Two federations that share a number of clients and nothing else publish the same bytes, once nothing is sent."""
    tables = [
        [
            row | {"y": factor * math.sin(row["y"]), "lag_1": row["lag_1"] / 40, "wind": -row["wind"] / 60}
            for row in known
        ]
        for factor, known in ((1.0, rows(0)), (7.0, rows(9, sizes=(14, 7, 10, 19))))
    ]

    def published(where: Path) -> list[dict[str, bytes]]:
        folders = []
        for at, table in enumerate(tables):
            folder = where / str(at)
            folder.mkdir(parents=True)
            one = on_csv(
                write_csv(folder / "rows.csv", table), *BUDGET, *RANGES, "privacy.randomness=simulation", *sets
            )
            run.run(one, folder / "run")
            release.release(folder / "run", folder / "out")
            folders.append({path.name: path.read_bytes() for path in (folder / "out").iterdir()})
        return folders

    mine, theirs = published(tmp_path / "told")
    assert mine != theirs
    nothing_sent(monkeypatch)
    mine, theirs = published(tmp_path / "silent")
    assert mine == theirs

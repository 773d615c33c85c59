"""Whoever asks a run, by whichever function, gets the predictions that it reported of its test rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pacbayes_fl as fl
from pacbayes_fl.study import run
from pacbayes_fl.study.serving import release
from pacbayes_fl.study.serving.predict import Prediction, join, predict
from tests.tiny import Row, on_csv, write_csv

MOMENTS = {"mean": "mean", "std": "std", "lower": "q0.025", "upper": "q0.975"}
FEW = "federation.rounds=2"
POOLED, SHRUNK, MIXED = "data.scale=pooled", "data.scale=shrunk", "model.residuals=mixture"
CONFORMAL, SUMMARIES, LOG = "report.intervals=conformal", "data.client_inputs=summaries", "data.transform=log1p"
POSITIVE = "data.lower_bound=0"
LEARNED = {"method.name=fedsi", "method.name=pfedbayes"}  # personal models by draws that are those of a name
OPTIONS = [
    (FEW,),
    (FEW, LOG, SHRUNK),
    (FEW, "data.transform=logit", POSITIVE, "data.upper_bound=7", POOLED, MIXED),
    (FEW, "data.transform=yeo-johnson", "data.transform_lambda=learned", MIXED, CONFORMAL),
    (FEW, POSITIVE, "data.upper_bound=cap", MIXED, SUMMARIES),
    (FEW, POSITIVE, CONFORMAL, "report.interval_blocks=5", SUMMARIES),
    (FEW, "model.likelihood=student-t", SHRUNK, POSITIVE),
    (FEW, "model.networks=false", "data.scale=none", MIXED),
    (FEW, "model.noise_widths=[4]", SUMMARIES, POOLED, LOG),
    (FEW, "federation.average_last=0.5", SUMMARIES),
    (FEW, "model.inducing=5", LOG, CONFORMAL),
    ("method.name=ridge", LOG, POSITIVE),
    ("method.name=gbt", "method.trees=5", LOG, POOLED, SUMMARIES),
    ("method.name=fedavg", FEW, LOG, SUMMARIES, SHRUNK),
    ("method.name=fedsi", FEW, "method.alpha=0.1", "method.personal_alpha=0.1", POSITIVE, SHRUNK),
    ("method.name=pfedbayes", FEW, "method.zeta=0.1", "method.steps=2", LOG, SHRUNK),
]


def table(sizes: Iterable[int] = (28, 9, 20, 15), new: Iterable[int] = (25, 11)) -> list[Row]:
    """Targets between 0 and 5 of four clients and two new ones, with a capacity of each; three test rows a client."""
    random, out = np.random.default_rng(0), []
    for group, counts in (("existing", sizes), ("new", new)):
        for k, count in enumerate(counts):
            x = random.normal(size=(count, 2)) + random.normal()
            y = 5.0 / (1.0 + np.exp(0.4 * x[:, 0] - x[:, 1] - 0.3 * random.standard_t(4, size=count)))
            for i in range(count):
                fields = {"client": f"{group}_{k}", "a": x[i, 0], "b": x[i, 1], "cap": 5 + k % 2, "y": y[i]}
                out.append(fields | {"split": "test" if i >= count - 3 else "train", "group": group})
    return out


def asked(path: Path, rows: Iterable[Row], known: bool, rename: str = "{}") -> Path:
    """Write rows without their split; those of tests without their targets, unless these are to be known."""
    hidden = [{**row, "y": row["y"] if known or row["split"] == "train" else float("nan")} for row in rows]
    drop = {"split", "group"}
    kept = [{name: value for name, value in row.items() if name not in drop} for row in hidden]
    return write_csv(path, [{**row, "client": rename.format(row["client"])} for row in kept])


def same(got: Tensor, expected: Tensor, what: str) -> None:
    def named(text: str) -> str:
        return f"{what}: {text}"

    torch.testing.assert_close(got.double(), expected.double(), rtol=1e-7, atol=1e-7, msg=named)


@pytest.mark.law
@pytest.mark.parametrize("sets", OPTIONS, ids=", ".join)
def test_every_answer_is_what_the_run_reported(sets: tuple[str, ...], tmp_path: Path) -> None:
    rows = table()
    tested, new = [row for row in rows if row["split"] == "test"], [row for row in rows if row["group"] == "new"]
    source, questions = write_csv(tmp_path / "rows.csv", rows), asked(tmp_path / "test.csv", tested, known=True)
    reported = run.run(on_csv(source, *sets, "report.page=false"), tmp_path / "run")
    trained, kept = run.open_run(tmp_path / "run"), reported.predictions

    scored = {client.name: client.metrics for client in fl.score(trained, questions).result.clients}
    for client in reported.clients:
        known = scored[client.name]
        assert {"rsmse", "nlpd", "crps", "coverage_95"} <= known.keys() <= client.metrics.keys()
        for metric, value in known.items():
            assert client.metrics[metric] == pytest.approx(value, rel=1e-7, abs=1e-7, nan_ok=True), metric

    told = fl.forecast(trained, questions, quantiles=[0.025, 0.975])
    release.release(tmp_path / "run", tmp_path / "out", public_scaling=True)
    strangers = join(trained, asked(tmp_path / "renamed.csv", new, known=False, rename="x {}"))
    newcomers = join(release.open_release(tmp_path / "out"), asked(tmp_path / "new.csv", new, known=False))
    for group, scaled in trained.groups.items():
        for k, name in enumerate(scaled.train.names):
            mask, at = kept[f"{group}.mask_test"][k], [i for i, client in enumerate(told.clients) if client == name]
            answers = {"predict": predict(trained, name, kept[f"{group}.x_test"][k][mask])}
            if group == "new":
                answers["join of a release"] = newcomers[name]
                if not LEARNED.intersection(sets):
                    answers["join"] = strangers[f"x {name}"]
            for moment, column in MOMENTS.items():
                expected = kept[f"{group}.{moment}"][k][mask]
                same(told.predicted[column][at], expected, f"forecast, {name}, {moment}")
                for function, answer in answers.items():
                    assert isinstance(answer, Prediction)
                    same(getattr(answer, moment), expected, f"{function}, {name}, {moment}")

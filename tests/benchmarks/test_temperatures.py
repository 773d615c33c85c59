"""The table of one temperature a run: the likeliest on validation rows, applied to the test rows' predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import temperatures
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.results import records
from pacbayes_fl.study.run import open_run, run
from tests.tiny_images import tiny_images, write_root

SETS = ("method.name=pfedbayes", "method.steps=4", "method.draws=2", "method.minibatch=8", "federation.rounds=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = write_root(tmp_path_factory.mktemp("images")), tmp_path_factory.mktemp("runs") / "run"
    run(tiny_images(root, *SETS), out)
    return out


def test_the_temperature_makes_labels_of_validation_rows_most_likely(folder: Path) -> None:
    """By hand, on a grid."""
    trained = open_run(folder)
    group = trained.groups["existing"]
    rows = group.validation
    assert rows is not None
    ((_, log_probs),) = personalisation.personalise(
        trained.method, trained.state, group.train, trained.study.plan, lambda _, one: one.predict(rows.x).log_probs
    )

    def likelihood(temperature: float) -> float:
        own = (log_probs.double() / temperature).log_softmax(-1).gather(-1, rows.y.long().unsqueeze(-1)).squeeze(-1)
        return float((torch.where(rows.mask, own, 0.0).sum(1) / rows.size).mean())

    found = temperatures.temperature_of(trained)
    assert likelihood(found) >= max(likelihood(0.1 * 100 ** (i / 400)) for i in range(401)) - 1e-9


def test_test_rows_are_scored_as_the_run_scored_them_and_under_the_temperature(folder: Path) -> None:
    result = records.load(folder)
    plain, flat = temperatures.tempered(result, 1.0), temperatures.tempered(result, 1e6)
    assert plain.nll == pytest.approx(np.array(result.column("existing", "pm.nll")), rel=1e-5)
    assert plain.ece == pytest.approx(np.array(result.column("existing", "pm.ece")), abs=1e-6)
    assert plain.nll_tempered == pytest.approx(plain.nll) and plain.ece_tempered == pytest.approx(plain.ece)
    classes = result.predictions["existing.pm.probs"].shape[-1]
    assert flat.nll_tempered == pytest.approx(np.log(classes), rel=1e-4) and (flat.nll == plain.nll).all()
    table = temperatures.markdown([plain, plain._replace(seed=7, method="other", nll_tempered=plain.nll / 2)])
    assert [line.split("|")[1].strip() for line in table.splitlines()] == ["method", "---", "other", result.method]
    assert table.splitlines()[2].endswith("| 7 |")


def test_it_reads_run_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    temperatures.main([str(folder)])
    row = temperatures.tempered(records.load(folder), temperatures.temperature_of(open_run(folder)))
    assert capsys.readouterr().out.strip() == temperatures.markdown([row])


def test_a_study_without_validation_rows_is_refused(tmp_path: Path) -> None:
    root = write_root(tmp_path / "images")
    run(tiny_images(root, *SETS, "federation.rounds=1", "data.options.validation=0"), tmp_path / "run")
    with pytest.raises(StudyError, match="has no validation rows"):
        temperatures.temperature_of(open_run(tmp_path / "run"))

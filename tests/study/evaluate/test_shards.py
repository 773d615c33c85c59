"""Scores that several processes take together are those of one, and warnings of any of them are heard."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.federation.federation_state import FederationState, start
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate import shards
from pacbayes_fl.study.evaluate.report import Report
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows.saved_rows import data_again
from tests.forked import fork
from tests.ranked import together
from tests.tiny import tiny

pytestmark = fork


def test_points_rows_and_warnings_of_three_processes(tmp_path: Path) -> None:
    study = tiny()
    method, groups = prepare(study, data_again(study, None))
    group, state = groups["existing"], start(method, groups["existing"].train, study.plan)

    def scored(state: FederationState, part: ScaledGroup, at: torch.Tensor) -> Report:
        names = part.train.names
        if "poly_02" in names:
            warnings.warn("poly_02 is odd", stacklevel=1)
        rows = [ClientRow(i, name, "existing", 1, {}) for i, name in zip(part.train.ids, names, strict=True)]
        return Report(rows, {"existing.mean": part.test.x[..., 0], "existing.at": at.double()})

    def work(ranks: Ranks | None) -> tuple[dict[str, float], list[str], dict[str, torch.Tensor], list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = shards.report(scored, state, group, ranks)
        names = [row.name for row in report.rows]
        point = shards.point(method, state, group, study.plan, ranks)
        return point, names, dict(report.predictions), [str(one.message) for one in caught]

    point, names, predictions, said = work(None)
    found = together(3, tmp_path, work)
    assert [one[0] for one in found] == [pytest.approx(point, rel=1e-12)] * 3
    assert found[0][1] == names and found[1][1] == []
    assert torch.equal(found[0][2]["existing.mean"], predictions["existing.mean"])
    assert found[0][2]["existing.at"].tolist() == [0, 1, 2, 3]
    assert said == found[0][3] == ["poly_02 is odd"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda state: {"rsmse": torch.zeros(1)}, "'rsmse' is a metric or another column of a client"),
        (lambda state: {"m": torch.zeros(1)}, "'m' is a metric or another column"),
        (lambda state: {"own": torch.tensor(1.0)}, r"must give 'own' as a number for every client, \[1\], got \[\]"),
        (lambda state: {"own": 1.0}, r"must give 'own' as a number for every client, \[1\], got 1.0"),
    ],
)
def test_what_a_method_says_of_states_is_refused_before_the_first_round(
    given: Callable[[object], dict[str, object]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PacPFL, "describe", lambda self, state: given(state))
    seen: list[RoundRecord] = []
    with pytest.raises((StudyError, ShapeError), match=f"^describe of pac-pfl:? ?{said}"):
        run.run(tiny(), on_round=seen.append)
    assert not seen

"""A node certifies and predicts with a model that was released."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.cli import main
from pacbayes_fl.errors import DeployError
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.node_release import results_of
from pacbayes_fl.study.serving.release import release
from tests.study.deployment.test_gather import SMALL, nodes_of
from tests.study.deployment.test_server import reach

SETS = [*SMALL, "report.certify.scheme=split", "report.certify.independent=true"]


@pytest.mark.slow
def test_a_release_gives_what_the_last_message_of_the_server_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.from_toml("polynomial", SETS)
    serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes")))
    release(tmp_path / "there", tmp_path / "released", public_scaling=True)
    folder, names = tmp_path / "nodes" / "0", ["poly_00", "poly_02", "new_poly_00"]
    own = results_of(study, folder)
    made = results_of(study, folder, names, tmp_path / "released")
    assert made != own and results_of(study, folder, names, tmp_path / "released") == made
    said = {row.name: row.metrics for row in load_result(own).clients}
    for row in load_result(made).clients:
        assert row.metrics == pytest.approx(said[row.name], rel=1e-9, nan_ok=True)
    line = ["--folder", str(folder)] + [part for one in SETS for part in ("--set", one)]
    assert main(["node", "certify", "polynomial", *line, "--bound", "seeger"]) == 0
    assert "new_poly_00" in capsys.readouterr().out
    (tmp_path / "ask.csv").write_text("client,x\npoly_00,0.5\n")
    assert main(["node", "predict", "polynomial", *line, "--data", str(tmp_path / "ask.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("poly_00,")
    assert main(["node", "predict", "polynomial", *line]) == 1
    other = Study.from_toml("polynomial", [*SETS, "method.tau=0.5"])
    with pytest.raises(DeployError, match=r"not of the node's study: tau is 0.5 here and .* in the release"):
        results_of(other, folder, names, tmp_path / "released")
    with pytest.raises(DeployError, match="no results of a finished run"):
        results_of(study, tmp_path / "nobody")

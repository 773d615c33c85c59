"""Progress of a run: in a notebook that is executed as Jupyter does, on a terminal, and in a log nothing."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.progress import ProgressBar

CELLS = (
    """
import warnings; warnings.simplefilter("ignore")
import torch, pacbayes_fl as fl
from pacbayes_fl import bounds
x = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)
clients = {f"<b>house_{k}": (x, (k + 1) * x[:, 0]) for k in range(3)}
network = fl.BayesianMLP((1, 4, 1), fl.Gaussian(), torch.float64)
study = fl.Study.from_table({"federation": {"rounds": 3}})
result = fl.run(study, method=fl.FedAvg(network), data=clients, callbacks=[fl.ProgressBar(study.plan.rounds)])
""",
    "result",
    "result.to_pandas()",
    "fl.ClientBatch.pad([*clients.values()], [*clients])",
)


@pytest.mark.slow
def test_a_notebook_shows_the_bar_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks are executed by nbclient")
    pytest.importorskip("ipykernel", reason="notebooks are executed by the kernel of Python")
    from nbformat import v4

    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [[one.get("data", {}).get("text/html", "") for one in cell["outputs"]] for cell in notebook.cells]
    assert len(shown[0]) == 1 and '<progress max="3" value="3"' in shown[0][0] and "round 3 of 3" in shown[0][0]
    for outputs in shown[1:]:
        assert len(outputs) == 1 and "<table" in outputs[0] and "<b>house" not in outputs[0]
    assert "rsmse" in shown[1][0] and "house_2" in shown[3][0]
    assert all(one["output_type"] != "stream" for cell in notebook.cells for one in cell["outputs"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_and_a_log_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, text in ((Terminal(), "round 2 of 2, rsmse 0.25"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", stream)
        bar = ProgressBar(2)
        bar.on_start(())
        bar.on_round(RoundRecord(1, 3, (), {"rsmse": 0.5}))
        bar.on_round(RoundRecord(2, 3, (), {"rsmse": 0.25}))
        written = stream.getvalue()
        assert text in written and written.count("\n") == bool(text)
    with pytest.raises(StudyError, match="at least 1"):
        ProgressBar(0)

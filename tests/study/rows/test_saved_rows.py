"""A run that keeps no rows keeps none, and reads them again where it needs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pacbayes_fl import cli
from pacbayes_fl.certificates import clients
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.results import records as results
from pacbayes_fl.study import run
from pacbayes_fl.study.rows import saved_rows
from pacbayes_fl.study.serving.predict import predict
from tests.leaks import leaks
from tests.tiny import assert_same_state, learnable, on_csv, quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

NO_ROWS = "report.keep=no-rows"


def of_rows(folder: Path, dataset: object, again: Callable[[], Path] | None = None) -> set[str]:
    """Return the kinds of what stands of the clients' rows in a folder, and in another run's; names are in it anyway.

    Four letters of a random salt are those of some number, once in thousands of folders.
    """
    return {kind for kind, _ in leaks(folder, dataset, again, known=("name", "id"))}


@pytest.mark.law
@pytest.mark.parametrize("name", [*METHODS])
def test_nothing_of_the_rows_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    sets, table = learnable(name, rows(3))
    path = write_csv(tmp_path / "mine.csv", table)
    one = on_csv(path, *quick(name), *sets, NO_ROWS, "federation.rounds=2", "report.certify.scheme=split")
    if not METHODS[name].federated:
        with pytest.raises(StudyError, match="send their rows to the server, whose state may hold them"):
            run.run(one, tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return

    def trained(folder: Path) -> Path:
        run.run(one, folder)
        return folder

    dataset = run.open_run(trained(tmp_path / "run")).dataset
    assert of_rows(tmp_path / "run", dataset, lambda: trained(tmp_path / "again")) == set()
    assert not {"data.npz", "held_out.npz"} & {path.name for path in (tmp_path / "run").iterdir()}


def test_the_search_finds_what_is_kept(finished: Path) -> None:
    assert "number" in of_rows(finished, run.open_run(finished).dataset)


@pytest.mark.slow
def test_it_goes_on_certifies_and_predicts_with_rows_from_their_source(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "mine.csv", rows(2))
    sets = ("report.certify.scheme=split", "report.certify.independent=true")
    run.run(on_csv(path, *sets), tmp_path / "all")
    run.run(on_csv(path, *sets, NO_ROWS, "federation.rounds=8"), tmp_path / "none")
    run.run(on_csv(path, *sets, NO_ROWS), tmp_path / "none", resume=True)
    assert_same_state(tmp_path / "all", tmp_path / "none")
    for name in ("clients.csv", "metrics.json"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "none" / name).read_bytes()
    mine, theirs = (run.open_run(tmp_path / name) for name in ("all", "none"))
    one = clients.certify(mine, Request())
    (tmp_path / "all" / "certified.jsonl").unlink()  # it is about the same rows
    other = clients.certify(theirs, Request())
    assert [line.bound for line in one.clients] == [line.bound for line in other.clients] and one.clients
    ask = write_csv(tmp_path / "ask.csv", [{"lag_1": 51.0, "wind": 49.0}])
    assert predict(mine, "existing_0", ask).mean.equal(predict(theirs, "existing_0", ask).mean)


@pytest.mark.law
@pytest.mark.parametrize("command", ["resume", "certify", "predict", "join", "release"])
def test_without_the_source_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = write_csv(tmp_path / "mine.csv", rows(2))
    one, folder = on_csv(path, NO_ROWS, "federation.rounds=1"), tmp_path / "run"
    run.run(one, folder)
    path.unlink()
    ask = write_csv(tmp_path / "ask.csv", rows(3))
    words = {
        "resume": ["run", str(folder / "study.toml"), "--rounds", "2", "--out", str(folder), "--resume"],
        "certify": ["certify", str(folder)],
        "predict": ["predict", str(folder), "--client", "existing_0", "--data", str(ask)],
        "join": ["join", str(folder), "--data", str(ask)],
        "release": ["release", str(folder), "--out", str(tmp_path / "out")],
    }[command]
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert "keeps no rows (report.keep = 'no-rows')" in said and "put the data back where [data]" in said
    assert str(path) in said and len(said.splitlines()) == 1


def test_other_rows_than_before_are_refused(tmp_path: Path) -> None:
    table = rows(2)
    path = write_csv(tmp_path / "mine.csv", table)
    one, folder = on_csv(path, NO_ROWS, "federation.rounds=1"), tmp_path / "run"
    run.run(one, folder)
    for at, value in ((3, 1e-9), (-1, 1e-9), (11, 2.0)):  # training and test rows, existing and new clients
        changed = [dict(row) for row in table]
        changed[at]["wind"] += value
        write_csv(path, changed)
        wanted = f"client '{changed[at]['client']}': its rows are not those"
        with pytest.raises(DataError, match=wanted):
            run.open_run(folder)
        with pytest.raises(DataError, match=wanted):
            run.run(one, folder, resume=True)
    write_csv(path, [row for row in table if row["client"] != "new_1"])
    with pytest.warns(UserWarning, match="new_1 left since the run was started"):
        run.run(one, folder, resume=True)
    write_csv(path, [{("gust" if key == "wind" else key): value for key, value in row.items()} for row in table])
    with pytest.raises(DataError, match="columns were lag_1, wind, y when the run was started, now lag_1, gust, y"):
        run.run(one, folder, resume=True)
    write_csv(path, table)
    (folder / saved_rows.PRINTS).write_text("{}")
    with pytest.raises(DataError, match=r"rows\.json"):
        run.open_run(folder)


def test_of_images_the_folder_keeps_no_positions(tmp_path: Path) -> None:
    root = write_root(tmp_path / "root")
    run.run(tiny_images(root, "federation.rounds=2"), tmp_path / "all")
    run.run(tiny_images(root, "federation.rounds=2", NO_ROWS), tmp_path / "none")
    assert not (tmp_path / "none" / "data.npz").exists()
    result = results.load(tmp_path / "none")
    assert result.predictions == {} and result.column("existing", "pm.accuracy")
    one, other = (run.open_run(tmp_path / name) for name in ("all", "none"))
    assert one.dataset.rows is not None and other.dataset.rows is not None
    assert np.array_equal(one.dataset.rows["position"], other.dataset.rows["position"])


def test_figures_that_need_rows_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.run(tiny(NO_ROWS, "federation.rounds=2"), tmp_path / "run")
    assert cli.main(["plot", str(tmp_path / "run")]) == 0
    drawn = capsys.readouterr().out
    assert "learning.png" in drawn and "predictions" not in drawn and "calibration" not in drawn
    assert cli.main(["show", str(tmp_path / "run")]) == 0


def test_what_is_kept_is_settled_with_the_run(tmp_path: Path) -> None:
    run.run(tiny("federation.rounds=1"), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"report\.keep: saved \"all\", now \"no-rows\""):
        run.run(tiny("federation.rounds=2", NO_ROWS), tmp_path / "run", resume=True)

"""Requests for certificates are counted, later ones pay for all, and a file that was shortened is noticed."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pacbayes_fl.bounds import BOUNDS, SaturatingSquare
from pacbayes_fl.certificates import log
from pacbayes_fl.certificates.clients import certify, checked
from pacbayes_fl.certificates.log import ARRIVED, FILE, share, turn
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.errors import CheckpointError, DamageWarning, DataError
from pacbayes_fl.results.certificates import CertifiedRun, tables_of
from pacbayes_fl.results.manifest import adopt, extend
from pacbayes_fl.study.run import open_run, run
from pacbayes_fl.study.serving.updates import update
from tests.tiny import on_csv, rows, tiny, write_csv

SPLIT = "report.certify.scheme=split"
QUICK = (SPLIT, "federation.rounds=2")
SEEGER = {"bound": "seeger", "round": 2, "state": "a", "split": "rows"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(tiny(*QUICK), folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def asked(folder: Path, request: Request | None = None) -> CertifiedRun:
    table = certify(open_run(folder), request or Request())
    table.save(folder)
    return table


def tried(table: CertifiedRun) -> int:
    return int(table.certificates["existing"]["premises"]["tried"])


def test_the_shares_of_all_requests_sum_to_one() -> None:
    total = sum((Fraction(1, share(k, None) or 0) for k in range(1, 1000)), Fraction(0))
    assert total == 1 - Fraction(1, 1000)
    assert [share(k, 3) for k in range(1, 6)] == [3, 3, 3, None, None]


def test_each_further_bound_beta_loss_and_delta_pays_for_all(folder: Path) -> None:
    requests = [Request(), *(Request("catoni", beta=beta) for beta in (1.0, 2.0, 4.0, 8.0, 16.0)), Request(delta=0.1)]
    tables = [asked(folder, request) for request in requests]
    assert [table.number for table in tables] == [1, 2, 3, 4, 5, 6, 7]
    assert [tried(table) for table in tables] == [2, 6, 12, 20, 30, 42, 56]
    alone = certify(replace(open_run(folder), folder=None), replace(requests[3], tried=20))
    assert [line.bound for line in tables[3].clients] == [line.bound for line in alone.clients]
    assert asked(folder, requests[2]) == tables[2]  # the same request again is the same certificate
    assert len((folder / FILE).read_text().splitlines()) == 7
    assert len(tables_of(folder)) == 6  # that at another delta stands in place of the first
    checked(tables_of(folder))


def test_a_record_that_does_not_give_its_value_is_refused_where_lines_agree_with_it(folder: Path) -> None:
    asked(folder)
    (path,) = (folder / "certificates").glob("*.json")
    (table,) = tables_of(folder)
    checked([table])
    lines = [replace(line, bound=0.5 * line.bound) if line.group == "new" else line for line in table.clients]
    record = {**table.certificates["new"], "value": [line.bound for line in lines if line.group == "new"]}
    edited = replace(table, clients=tuple(lines), certificates={**table.certificates, "new": record})
    assert edited.save(folder) == path
    with pytest.raises(DataError, match="certificates seeger of new clients"):
        checked(tables_of(folder))


class Within(SaturatingSquare):
    """A loss of one's own, whose name does not say its setting."""

    name = "mine"  # type: ignore[assignment]


def by_seeger(risk: Any, kl: Any, n: Any, delta: Any, premises: Any, *, monte_carlo: Any = None) -> Any:
    """Bound the risk as Seeger's does, under another name.

    L <= kl^-1(L^, ...)
    """
    return BOUNDS["seeger"].function(risk, kl, n, delta, premises, monte_carlo=monte_carlo)


def test_what_somebody_brings_is_told_apart_by_more_than_its_name(folder: Path) -> None:
    """Losses of one name with other settings, and bounds of one name with other functions, are other requests."""
    requests = [
        Request(loss=Within(1.0)),
        Request(loss=Within(0.5)),
        Request(replace(BOUNDS["seeger"], name="mine")),
        Request(replace(BOUNDS["seeger"], name="mine", function=by_seeger)),
        Request(replace(BOUNDS["seeger"], name="mine", posterior="no worse than the prior")),  # chosen otherwise
    ]
    assert [tried(asked(folder, request)) for request in requests] == [2, 6, 12, 20, 30]
    assert [tried(asked(folder, request)) for request in requests] == [2, 6, 12, 20, 30]


def test_so_is_a_file_of_which_a_helper_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder.parent)
    (folder.parent / "helper_of_mine.py").write_text("C = 1.0\n")
    (folder.parent / "mine.py").write_text(
        "from dataclasses import replace\nimport helper_of_mine\nfrom tests.certificates.test_log import BOUNDS\n"
        "def mine(risk, kl, n, delta, premises, *, monte_carlo=None):\n"
        ' """Bound the risk as Seeger does.\n\n L <= kl^-1(L^, ...)\n """\n kl = helper_of_mine.C * kl\n'
        ' return BOUNDS["seeger"].function(risk, kl, n, delta, premises, monte_carlo=monte_carlo)\n'
        'MINE = replace(BOUNDS["seeger"], name="mine", function=mine)\n'
    )
    request = Request(f"{folder.parent / 'mine.py'}:MINE")
    assert (tried(asked(folder, request)), tried(asked(folder, request))) == (2, 2)
    monkeypatch.setattr("helper_of_mine.C", 0.1)
    assert tried(asked(folder, request)) == 6


@pytest.mark.parametrize("bound", ["seeger", "holdout-betting"])
def test_what_is_no_certificate_shows_no_number_that_could_choose_the_next_one(folder: Path, bound: str) -> None:
    """Nothing is counted of it: all that it holds are reasons, which another run on the same rows may do away with."""
    table = asked(folder, Request(bound, tried=None))
    assert all(table.reasons.values()) and table.number is None and not (folder / FILE).exists()
    assert (table.clients, table.certificates, table.summary, table.holdout) == ((), {}, {}, {})


def test_a_resume_makes_tables_stale_and_the_next_ones_pay(folder: Path) -> None:
    first = asked(folder)
    run(tiny(SPLIT, "federation.rounds=3"), folder, resume=True)
    with pytest.raises(DataError, match=r"seeger\.json is stale: it is of round 2, and the run is at round 3"):
        tables_of(folder)
    second = asked(folder)
    assert (first.model["round"], second.model["round"]) == (2, 3)
    assert (tried(first), tried(second)) == (2, 6)
    assert tables_of(folder) == [second]


@pytest.mark.slow
def test_seeds_and_methods_on_the_same_rows_are_counted_where_they_stand_side_by_side(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    sets = (*QUICK, "report.certify.independent=true")
    tables = []
    for seed in range(3):
        run(on_csv(path, *sets, f"seed={seed}"), tmp_path / f"seed{seed}")
        tables.append(asked(tmp_path / f"seed{seed}"))
    for name, more in {"fewer columns": 'data.features=["wind"]', "another unit": 'data.scale="none"'}.items():
        run(on_csv(path, *sets, more), tmp_path / name)
        tables.append(asked(tmp_path / name))
    assert [tried(table) for table in tables] == [2, 6, 12, 20, 30]
    other = write_csv(tmp_path / "other.csv", rows(seed=1))
    run(on_csv(other, *sets), tmp_path / "other")
    assert tried(asked(tmp_path / "other")) == 2
    assert "not elsewhere" in tables[0].labels["requests"]


def test_what_was_settled_beforehand_costs_that_and_no_more_is_given(tmp_path: Path) -> None:
    run(tiny(*QUICK, "report.certify.tables=2"), tmp_path / "run")
    tables = [asked(tmp_path / "run", Request(delta=delta)) for delta in (0.1, 0.05, 0.02)]
    assert [tried(table) for table in tables[:2]] == [2, 2]
    assert not tables[2].clients and "report.certify.tables = 2" in tables[2].reasons["existing"][0]


@pytest.mark.law
@pytest.mark.parametrize(("first", "second"), [(1, None), (None, 5), (1, 2)])
def test_one_rule_shares_delta_among_all_requests(tmp_path: Path, first: int | None, second: int | None) -> None:
    """delta / 1 and delta / 6, or delta / 1 and delta / 2: each table would hold, and the better of them would not."""
    path = write_csv(tmp_path / "rows.csv", rows())
    for seed, tables in enumerate((first, second)):
        sets = () if tables is None else (f"report.certify.tables={tables}",)
        run(on_csv(path, *QUICK, "report.certify.independent=true", f"seed={seed}", *sets), tmp_path / f"seed{seed}")
    assert asked(tmp_path / "seed0").clients
    table = asked(tmp_path / "seed1")
    assert not table.clients and not any(table.valid.values())
    words = f"report.certify.tables = {first}, and this one with {second}"
    assert all(words in why[0] for why in table.reasons.values())


def test_the_price_multiplies_what_else_was_tried(folder: Path) -> None:
    asked(folder)
    assert tried(asked(folder, Request(tried=5))) == 30


def test_a_file_that_lost_requests_is_noticed(folder: Path) -> None:
    for delta in (0.1, 0.05):
        asked(folder, Request(delta=delta))
    log = folder / FILE
    lines = log.read_text().splitlines(keepends=True)
    for left in ("", lines[0]):
        log.write_text(left)
        table = certify(open_run(folder), Request())
        assert not table.clients and not any(table.valid.values())
        assert all("how often the rows were asked is not known" in why[0] for why in table.reasons.values())
    log.unlink()
    assert not certify(open_run(folder), Request()).clients


def test_what_says_who_trained_on_what_must_be_there(folder: Path) -> None:
    (folder / "environment.json").unlink()
    with pytest.warns(DamageWarning, match=r"environment\.json is missing: it holds versions, seed"):
        table = certify(open_run(folder), Request())
    assert not table.clients and "environment.json missing" in table.reasons["new"][0]
    (folder / "trained.json").unlink()
    for _ in ("by its manifest", "by the saved round"):
        with pytest.raises(DataError, match=r"trained\.json is missing: it holds which clients ever trained"):
            open_run(folder)
        adopt(folder)


def test_half_a_line_counts_as_a_request(folder: Path) -> None:
    (folder / FILE).touch()
    extend(folder, FILE)  # as a request does before its line
    (folder / FILE).write_text('{"number": 1, "bou')
    assert tried(asked(folder)) == 6
    assert [bool(line.startswith("{")) for line in (folder / FILE).read_text().splitlines()] == [True, True]
    assert json.loads((folder / FILE).read_text().splitlines()[1])["number"] == 2


def test_a_request_that_got_no_number_is_not_counted(tmp_path: Path) -> None:
    run(on_csv(write_csv(tmp_path / "rows.csv", rows()), *QUICK), tmp_path / "run")
    tables = [asked(tmp_path / "run", request) for request in (Request(), Request("catoni", beta=1.0))]
    assert not any(table.clients for table in tables) and [table.number for table in tables] == [None, None]
    assert tables[0].reasons == tables[1].reasons  # not that the file has lost the first
    assert not (tmp_path / "run" / FILE).exists()


def test_two_requests_at_a_time_do_not_get_one_number(tmp_path: Path) -> None:
    mine, theirs = turn(tmp_path, SEEGER), turn(tmp_path, SEEGER | {"bound": "catoni"})
    mine.keep()
    with pytest.raises(CheckpointError, match="request 1 of these rows became request 2"):
        theirs.keep()
    turn(tmp_path, SEEGER | {"bound": "catoni"}).keep()
    mine.keep()  # again: it stands there
    assert [json.loads(line)["number"] for line in (tmp_path / FILE).read_text().splitlines()] == [1, 2]
    assert turn(None, SEEGER).number == 1 and turn(None, SEEGER).folder is None


def test_requests_at_a_time_in_folders_side_by_side_do_not_get_one_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one looks, the other cannot write: both would find nothing, and get the number that is free."""
    folders, known = [tmp_path / name for name in "ab"], log._known
    for folder in folders:
        folder.mkdir()
    turns = [turn(folder, SEEGER) for folder in folders]

    def slow(*args: Any) -> Any:
        result = known(*args)
        time.sleep(0.3)
        return result

    monkeypatch.setattr(log, "_known", slow)
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(one.keep) for one in turns]]
    assert max(map(str, errors)).startswith("request 1 of these rows became request 2")
    assert sum(error is None for error in errors) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*certified\.jsonl"):
        turn(tmp_path / "absent", SEEGER).keep()


def test_rows_of_a_new_client_that_were_edited_are_refused(folder: Path) -> None:
    with np.load(folder / "data.npz") as saved:
        arrays = dict(saved)
    new = arrays["client_new"][arrays["client"]] & ~arrays["test"]
    arrays["y"][new] *= 0.5
    np.savez(folder / "data.npz", **arrays)
    with pytest.raises(DataError, match=r"data\.npz is damaged or was edited"):
        open_run(folder)
    adopt(folder)
    with pytest.raises(DataError, match=r"data\.npz are not those that environment\.json says"):
        open_run(folder)


def test_a_bound_at_all_numbers_of_rows_is_one_request_of_one_sequence_of_rows(tmp_path: Path) -> None:
    """A copy of the folder to which other rows come holds another sequence, and pays for another request.

    Its number is the third: a line that stands in two logs is counted twice.
    """
    table, more = rows(sizes=(9, 8), new=(7,)), [rows(seed, sizes=(5, 5), new=(4,)) for seed in (5, 6, 7)]
    one, copy = tmp_path / "runs" / "one", tmp_path / "runs" / "copy"
    study = on_csv(write_csv(tmp_path / "rows.csv", table), *QUICK, "report.certify.independent=true")
    run(study, one)
    assert asked(one, Request("anytime")).number == 1
    shutil.copytree(one, copy)
    came = [write_csv(tmp_path / f"{at}.csv", part) for at, part in enumerate(more)]
    for folder, data in ((one, came[0]), (copy, came[1])):
        update(open_run(folder), data)
    later = Request("anytime", later=True)
    assert [asked(folder, later).number for folder in (one, copy, one, copy)] == [1, 3, 1, 3]
    update(open_run(one), came[2])
    assert [asked(folder, later).number for folder in (one, one, copy)] == [1, 1, 3]
    assert asked(one, Request("anytime")).number == 1
    assert asked(one).number == 4
    numbers = [json.loads(line)["number"] for line in (one / FILE).read_text().splitlines()]
    assert numbers == [1, 1, 1, 4]  # each update of the one request on a line of its own


@pytest.mark.parametrize("damaged", ['{"number": 2, "bou', ""])
def test_updates_of_a_request_hide_no_request_that_cannot_be_read(tmp_path: Path, damaged: str) -> None:
    known = [{"number": 1, **SEEGER, "file": None, ARRIVED: list("abc"[:k])} for k in (1, 2, 3)]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / FILE).write_text("\n".join([*map(json.dumps, known), damaged]))
    assert turn(folder, {**SEEGER, ARRIVED: list("abcd")}).number == 1
    assert turn(folder, {**SEEGER, ARRIVED: list("abd")}).number == (3 if damaged else 2)
    assert turn(folder, {**SEEGER, "bound": "catoni"}).number == (3 if damaged else 2)

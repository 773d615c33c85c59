"""Runs on the same rows add up in one file: composed as dp-accounting does, refused in time, also after copies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import rdp

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.files import checksum
from pacbayes_fl.privacy.accounting import epsilon
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.privacy.shared_ledger import SharedLedger, read

CHARGE = Charge("gaussian", 4.0, 9, Cohorts(20))
OTHER = Charge("gaussian", 3.0, 5, Cohorts(30, 6, "poisson"))
DELTA = 1e-3
PAIR: Mapping[str, Sequence[str]] = {"a": ["1", "2"], "b": ["3"]}


class Folder:
    """A run's folder, as far as a shared ledger knows it, and its place there."""

    def __init__(self, path: Path, rows: Mapping[str, Sequence[str]] = PAIR, total: float | None = 5.0) -> None:
        prints = {name: frozenset(row.encode() for row in own) for name, own in rows.items()}
        self.keys: Sequence[str] = ()
        self.made = 0
        self.given = path, total, DELTA, False, prints, "run"
        self.place = SharedLedger(*self.given)

    def join(self, charges: Sequence[Charge]) -> SharedLedger:
        self.place = SharedLedger(*self.given)
        self.place.join(self.keys, charges[: self.made], charges[self.made :], self.keep)
        return self.place

    def keep(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)


def test_two_runs_cost_what_dp_accounting_composes(tmp_path: Path) -> None:
    """Gaussian rounds beside subsampled ones, as RDP of another library adds them up at its own orders."""
    path = tmp_path / "ledger"
    Folder(path).join([CHARGE] * 10).settle([CHARGE] * 10)
    result = Folder(path, total=None).join([OTHER] * 40).settle([OTHER] * 40)
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(4.0), 10)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(3.0)), 40)
    by_rdp = accountant.get_epsilon(DELTA)
    pld = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    pld.compose(dp_accounting.GaussianDpEvent(4.0), 10)
    pld.compose(dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(3.0)), 40)
    assert result.epsilon == pytest.approx(pld.get_epsilon(DELTA), rel=2e-3) and result.epsilon < by_rdp
    assert result.runs == 1 and result.epsilon > max(epsilon([CHARGE] * 10, DELTA), epsilon([OTHER] * 40, DELTA))


def test_cohorts_in_order_are_refused_since_every_run_begins_the_order_anew(tmp_path: Path) -> None:
    in_order = Charge("gaussian", 4.0, 9, Cohorts(20, 5, "in-order", order="a"))
    with pytest.raises(PrivacyError, match="accounted for in a row"):
        Folder(tmp_path / "ledger").join([CHARGE, in_order])
    assert not (tmp_path / "ledger").exists()
    place = Folder(tmp_path / "ledger").join([CHARGE])
    with pytest.raises(PrivacyError, match="accounted for in a row"):
        place.cover([CHARGE, in_order])


def test_what_is_reserved_counts_and_what_is_not_spent_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    half = epsilon([CHARGE] * 10, DELTA)
    first = Folder(path, total=1.1 * half).join([CHARGE] * 10)
    before = path.read_bytes()
    with pytest.raises(PrivacyError, match=r"allows epsilon = .* 'a' one other has spent or reserved .*"):
        Folder(path, total=None).join([CHARGE] * 2 + [OTHER])
    assert path.read_bytes() == before
    first.settle([CHARGE] * 3)
    Folder(path, total=None).join([CHARGE] * 7).settle([CHARGE] * 7)
    with pytest.raises(PrivacyError, match="2 others"):
        Folder(path, total=None).join([CHARGE] * 3)


def test_runs_compose_at_clients_whose_rows_both_saw(tmp_path: Path) -> None:
    path, ten = tmp_path / "ledger", [CHARGE] * 10
    Folder(path, {"a": "12"}, 2 * epsilon(ten, DELTA)).join(ten).settle(ten)
    apart = Folder(path, {"a": "45"}, None).join(ten).settle(ten)
    assert (apart.runs, apart.epsilon) == (0, epsilon(ten, DELTA))
    meets = Folder(path, {"c": "9", "d": "73"}, None).join(ten).settle(ten)
    assert (meets.runs, meets.epsilon) == (0, epsilon(ten, DELTA))
    one = Folder(path, {"fresh": "0", "renamed": "28"}, None).join(ten).settle(ten)
    assert (one.runs, one.client, one.epsilon) == (1, "renamed", epsilon(ten * 2, DELTA))
    both = Folder(path, {"x": "14"}, None).join([CHARGE]).settle([CHARGE])
    assert both.runs == 2 and both.epsilon == epsilon([*ten, *ten, CHARGE], DELTA)


def test_a_run_that_goes_on_is_not_counted_twice_and_a_copy_of_it_is(tmp_path: Path) -> None:
    path, ten = tmp_path / "ledger", [CHARGE] * 10
    limit = epsilon([CHARGE] * 15, DELTA)
    run = Folder(path, total=limit)
    run.join(ten)
    copy = Folder(path, total=limit)
    copy.keys = run.keys
    for _ in range(3):  # killed and resumed
        run.join(ten)
    assert [len(one.spent) for one in read(path).runs.values()] == [1]
    with pytest.raises(PrivacyError, match="one other has"):
        copy.join(ten)
    run.place.settle(ten)
    old, run.keys = run.keys, run.keys[:1]  # killed between the folder and the file
    with pytest.raises(PrivacyError, match="one other has"):
        run.join(ten)  # too much rather than too little
    run.keys = [*old, "never written"]
    run.made = 10
    assert run.join([CHARGE] * 12).settle([CHARGE] * 12).epsilon == epsilon([CHARGE] * 12, DELTA)


@pytest.mark.parametrize("ended", [True, False])
def test_a_copy_that_has_missed_releases_of_a_run_is_another_run(tmp_path: Path, ended: bool) -> None:
    path, ten = tmp_path / "ledger", [CHARGE] * 10
    run = Folder(path, total=epsilon([CHARGE] * 20, DELTA))
    run.join(ten).cover(ten[:4])
    copy = Folder(path, total=None)
    copy.keys, copy.made = run.keys, 3
    run.place.cover(ten[:6])
    if ended:
        run.place.settle(ten)
    result = copy.join(ten).settle(ten)
    assert (result.runs, result.epsilon) == (1, epsilon([CHARGE] * 20, DELTA))
    assert sorted(one.made.total() for one in read(path).runs.values()) == [10 if ended else 5, 10]


def test_a_run_whose_place_a_copy_has_taken_makes_no_further_release(tmp_path: Path) -> None:
    path, ten = tmp_path / "ledger", [CHARGE] * 10
    run, copy = Folder(path), Folder(path)
    run.join(ten).cover(ten[:4])
    copy.keys, copy.made = run.keys, 4  # the fourth was made by then
    copy.join(ten)
    with pytest.raises(PrivacyError, match="another copy of the run went on"):
        run.place.cover(ten[:5])
    run.made = 4
    assert run.join(ten).settle(ten).runs == 1  # when it is resumed, it is the other run


def test_a_run_that_goes_on_without_some_clients_keeps_what_they_have_spent(tmp_path: Path) -> None:
    path, ten = tmp_path / "ledger", [CHARGE] * 10
    limit = epsilon([CHARGE] * 15, DELTA)
    run = Folder(path, total=limit)
    run.join(ten).settle(ten)
    less = Folder(path, {"a": PAIR["a"]}, limit)
    less.keys, less.made = run.keys, 10
    less.join([CHARGE] * 11).settle([CHARGE] * 11)
    for gone in ({"b": PAIR["b"]}, {"a": PAIR["a"]}):
        with pytest.raises(PrivacyError, match="one other has spent"):
            Folder(path, gone, None).join(ten)


def test_a_round_beyond_the_plan_is_reserved_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    place = Folder(path, total=epsilon([CHARGE] * 12, DELTA)).join([CHARGE] * 10)
    before = path.read_bytes()
    place.cover([CHARGE])
    assert path.read_bytes() == before
    place.cover([CHARGE] * 10)
    ((run,),) = [read(path).runs.values()]
    assert run.spent == {CHARGE: 10} and run.made == {CHARGE: 9}
    place.cover([CHARGE] * 12)
    ((run,),) = [read(path).runs.values()]
    assert run.spent == {CHARGE: 12} and run.made == {CHARGE: 11} and not run.finished
    with pytest.raises(PrivacyError, match="allows") as caught:
        place.cover([CHARGE] * 13)
    assert caught.value.cause == "budget spent"


def test_what_is_not_known_is_never_taken_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with pytest.raises(PrivacyError, match="a new ledger needs a budget"):
        Folder(path, total=None).join([CHARGE])
    with pytest.raises(PrivacyError, match="no folder"):
        Folder(tmp_path / "no" / "ledger").join([CHARGE])
    run = Folder(path)
    run.join([CHARGE])
    with pytest.raises(PrivacyError, match=r"budget of epsilon = 5, got privacy.total = 6"):
        Folder(path, total=6.0).join([CHARGE])
    with pytest.raises(PrivacyError, match="hide another change"):
        Folder(path).join([Charge("gaussian", 4.0, 9, Cohorts(20, neighbours="replace"))])
    data = path.read_bytes()
    for spoiled in (data.replace(b'"count": 1', b'"count": 0'), data[:-9], b"", b"[]", b'{"sha256": 1}'):
        path.write_bytes(spoiled)
        for folder in (run, Folder(path)):
            with pytest.raises(PrivacyError, match="damaged or cannot be read"):
                folder.join([CHARGE])
        assert path.read_bytes() == spoiled
    path.unlink()
    with pytest.raises(PrivacyError, match="is not there, and this run stands in it"):
        run.join([CHARGE])
    path.write_bytes(data)
    run.join([CHARGE])
    path.unlink()
    Folder(path).join([CHARGE])
    with pytest.raises(PrivacyError, match="no longer knows this run"):
        run.place.settle([CHARGE])


def test_a_file_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Folder(path).join([CHARGE])
    body = json.loads(path.read_text("utf-8"))
    del body["sha256"]
    old = r"rows and runs \(another file, whose privacy\.total is less"
    for version, hint in ((1, old), (99, "update pacbayes_fl")):
        other = body | {"format_version": version}
        path.write_text(json.dumps(other | {"sha256": checksum(other)}), "utf-8")
        with pytest.raises(PrivacyError, match=rf"format {version}, this pacbayes_fl reads 4.*{hint}"):
            Folder(path).join([CHARGE])


def test_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    """The lock is of the open file, so that threads keep one another out as processes do."""
    path, cheap = tmp_path / "ledger", Charge("laplace", 20.0, 4, Cohorts(20))

    def run(_: int) -> None:
        Folder(path).join([cheap] * 2).settle([cheap])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(24)))
    runs = read(path).runs.values()
    assert len(runs) == 24 and sum(one.spent.total() for one in runs) == 24
    assert path.stat().st_mode & 0o077 == 0 and not list(tmp_path.glob("*.tmp"))

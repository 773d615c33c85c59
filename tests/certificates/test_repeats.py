"""Rows that stand in several places: whatever the scheme and the accident, n counts a client's own draws alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.bounds import SaturatingSquare
from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.repeats import Repeats, repeats_of
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.data import twins
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.privacy import guarantees
from pacbayes_fl.results.certificates import CertifiedRun
from pacbayes_fl.study.data import load
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.run import Trained, open_run, run, train
from tests.tiny import Row, on_csv, quick, rows, tiny, write_csv

Key = tuple[float, ...]
COUNTED = ("report.certify.independent=true", "data.duplicate_rows=allow", "federation.rounds=2")
SCHEMES = {
    "split": ("report.certify.scheme=split",),
    "split, global prior": ("report.certify.scheme=split", "report.certify.prior=global"),
    "folds": ("report.certify.scheme=folds", "report.certify.folds=2"),
    "private": ("privacy.epsilon=9", "privacy.mechanism=laplace", "privacy.clip=50.0"),
    "none": (),
}


@pytest.fixture(autouse=True, scope="module")
def _accounted_once() -> Iterator[None]:
    """Account for equal releases once: whatever the accident, there are two, of the same noise."""
    account = functools.cache(guarantees.replacement)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarantees, "replacement", lambda charges, at: account(tuple(charges), at))
        yield


def table() -> list[Row]:
    return rows(0, sizes=(13,) * 4, new=(13, 13))


def of(client: str, whole: list[Row]) -> list[Row]:
    return [row for row in whole if row["client"] == client]


def copied(whole: list[Row], source: str, target: str) -> list[Row]:
    """The target has the rows of the source in place of its own."""
    own = of(target, whole)[0]
    rest = [row for row in whole if row["client"] != target]
    return rest + [row | {"client": target, "group": own["group"]} for row in of(source, whole)]


def jittered(some: list[Row]) -> list[Row]:
    return [
        row | {name: row[name] * (1 + 1e-9 * (-1) ** i) for name in ("lag_1", "wind", "y")}
        for i, row in enumerate(some)
    ]


ACCIDENTS: dict[str, Callable[[list[Row]], list[Row]]] = {
    "none": lambda whole: whole,
    "the same rows in two clients": lambda whole: copied(whole, "existing_0", "existing_1"),
    "a new client has trained": lambda whole: copied(whole, "existing_0", "new_0"),
    "two new clients are one": lambda whole: copied(whole, "new_0", "new_1"),
    "rows repeated inside": lambda whole: [row for row in whole for _ in range(5)],
    "jittered twins": lambda whole: whole + jittered([row for row in whole if row["split"] == "train"]),
    "jittered rows of another": lambda whole: [
        *(row for row in copied(whole, "existing_0", "new_0") if row["client"] != "new_0"),
        *jittered(of("new_0", copied(whole, "existing_0", "new_0"))),
    ],
    "other places": lambda whole: whole[::-1],
}


def keys(batch: ClientBatch, k: int) -> set[Key]:
    """Rows of a client as they were drawn: jitter rounds away."""
    x, y = batch.x[k][batch.mask[k]].double(), batch.y[k][batch.mask[k]].double()
    return {tuple(round(value, 4) for value in row) for row in torch.cat((x, y.unsqueeze(1)), 1).tolist()}


def trained_fold(folder: Path, name: str) -> int | None:
    return open_run(folder).history.fold.get(name)


def own_draws(trained: Trained, left: set[Key] = frozenset()) -> dict[str, int]:  # type: ignore[assignment]
    """Count every client's rows of the bound that its prior has not seen under any name, by hand."""
    part = trained.study.report.certify
    existing = trained.groups["existing"].raw.train
    seen = [keys(existing, k) for k in range(existing.clients)]
    result = {}
    for k, name in enumerate(existing.names):
        if part.scheme == "split":
            assert trained.bound_rows is not None
            result[name] = len(keys(trained.bound_rows, k) - set().union(*seen) - left)
        elif part.scheme == "folds":
            fold = trained.method.fold_of  # type: ignore[attr-defined]
            mine = fold[existing.ids[k]]
            others = [rows for rows, i in zip(seen, existing.ids, strict=True) if fold[i] != mine]
            result[name] = len(seen[k] - set().union(*others) - left)
        else:
            result[name] = len(seen[k] - set().union(*(rows for j, rows in enumerate(seen) if j != k)) - left)
    fresh = trained.groups["new"].raw.train
    return result | {name: len(keys(fresh, k) - set().union(*seen) - left) for k, name in enumerate(fresh.names)}


def assert_counted(certified: CertifiedRun, trained: Trained, expected: dict[str, int]) -> None:
    """Each line counts draws of the client's own; a client without any has no line."""
    lines = {line.name: line for line in certified.clients}
    for label, group in trained.groups.items():
        if certified.reasons[label]:
            continue
        for name in group.train.names:
            assert (lines[name].rows if name in lines else 0) == expected[name], name
            assert name in lines or name in certified.labels["left_out"]


@pytest.mark.law
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_n_counts_draws_of_the_clients_own(scheme: str, accident: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", ACCIDENTS[accident](table()))
    run(on_csv(path, *COUNTED, *SCHEMES[scheme]), tmp_path / "run")
    trained = replace(open_run(tmp_path / "run"), folder=None)
    certified = certify(trained, Request())
    expected = own_draws(trained)
    for label, group in trained.groups.items():
        possible = any(expected[name] for name in group.train.names) and (scheme, label) != ("none", "existing")
        assert bool(certified.reasons[label]) != possible
    assert_counted(certified, trained, expected)
    m = 10 if scheme in ("folds", "private") else 5
    if accident in ("none", "other places"):
        assert [line.rows for line in certified.clients if line.group == "existing"] in ([m] * 4, [])
        assert [line.rows for line in certified.clients if line.group == "new"] == [10, 10]
        assert not any(line.repeats for line in certified.clients)
    if accident in ("rows repeated inside", "jittered twins"):
        assert all(line.repeats for line in certified.clients) and certified.clients


CHANGES: dict[str, Callable[[list[Row]], list[Row]]] = {"to the bit": lambda some: some, "jittered": jittered}
RENAMED = [  # any two of the three meet
    (scheme, change, group)
    for i, scheme in enumerate(name for name in SCHEMES if name != "private")
    for j, change in enumerate(CHANGES)
    for k, group in enumerate(("new", "existing"))
    if (i + j + k) % 2 == 0
]


@pytest.mark.law
@pytest.mark.filterwarnings("ignore:.*since the run was started", "ignore:the run ends before")
@pytest.mark.parametrize(("scheme", "change", "group"), RENAMED)
def test_a_client_that_trained_is_recognised_under_another_name(
    scheme: str, change: str, group: str, tmp_path: Path
) -> None:
    whole, path = table(), tmp_path / "rows.csv"
    run(on_csv(write_csv(path, whole), *COUNTED, *SCHEMES[scheme]), tmp_path / "run")
    before = open_run(tmp_path / "run").groups["existing"].raw.train
    left = keys(before, before.names.index("existing_1"))
    fold = trained_fold(tmp_path / "run", "existing_1")
    moved = [row | {"client": "renamed", "group": group} for row in CHANGES[change](of("existing_1", whole))]
    stayed = [row for row in whole if row["client"] != "existing_1"]
    sets = (*COUNTED, *SCHEMES[scheme], "federation.rounds=3")
    run(on_csv(write_csv(path, stayed + moved), *sets), tmp_path / "run", resume=True)
    trained = replace(open_run(tmp_path / "run"), folder=None)
    expected = own_draws(trained, left)
    if group == "new":
        assert expected["renamed"] == (5 if "split" in scheme else 0)
    elif scheme == "folds" and trained_fold(tmp_path / "run", "renamed") == fold:
        expected["renamed"] = 10  # the priors of its fold have never seen it, under either name
    assert_counted(certify(trained, Request()), trained, expected)


@pytest.mark.filterwarnings("ignore:.*since the run was started")
def test_a_client_that_has_left_is_recognised_by_rows_that_were_rounded(tmp_path: Path) -> None:
    """As far as twins of rows that are there: no column tells its training rows from new ones."""
    whole, path = table(), tmp_path / "rows.csv"
    run(on_csv(write_csv(path, whole), *COUNTED, *SCHEMES["split"]), tmp_path / "run")
    width = dict(zip(("lag_1", "wind", "y"), open_run(tmp_path / "run").history.width, strict=True))
    moved = [
        row
        | {"client": "renamed", "group": "new"}
        | {name: row[name] + 0.9 * (-1) ** i * width[name] for name in width}
        for i, row in enumerate(of("existing_1", whole))
    ]
    stayed = [row for row in whole if row["client"] != "existing_1"]
    again = on_csv(write_csv(path, stayed + moved), *COUNTED, *SCHEMES["split"], "federation.rounds=3")
    run(again, tmp_path / "run", resume=True)
    (line,) = [one for one in certify(open_run(tmp_path / "run"), Request()).clients if one.name == "renamed"]
    assert (line.rows, line.repeats) == (5, 5)  # of ten, those that were kept from the training under its first name


def test_a_twin_of_a_row_that_was_seen_counts_as_little_where_no_cell_tells(tmp_path: Path) -> None:
    """Cells of rows that are gone recognise a row, and not what is farther from it than their own twins would be."""
    whole = table()
    before = train(on_csv(write_csv(tmp_path / "rows.csv", whole), *COUNTED))
    width = 1e-4 * twins.spread([group.train for group in before.dataset.groups.values()])
    near = [row | {"lag_1": row["lag_1"] + 0.9 * width[0]} for row in of("new_0", whole) if row["split"] == "train"]
    trained = train(on_csv(write_csv(tmp_path / "rows.csv", whole + near), *COUNTED))
    own, owner = twins.stacked(trained.groups["new"].raw.train)
    own = own[owner == 0]
    assert repeats_of(trained, "new", trained.groups["new"].raw.train).n[0] == 10
    narrow = 1e-3 * width
    known = twins.cells(own[:10], narrow, 5)  # the first ten are as drawn, the others their twins
    assert not np.isin(twins.cells(own[10:], narrow, 5), known).any()
    gone = held_rows.TrainingHistory(
        {"gone": held_rows.TrainedClient("", known.reshape(-1))}, {}, 5, tuple(narrow.tolist())
    )
    again = replace(trained, history=gone)
    assert repeats_of(again, "new", trained.groups["new"].raw.train).n[0] == 0


@pytest.mark.parametrize("scheme", ["split", "none"])
def test_a_row_that_stands_among_validation_rows_counts_as_seen(scheme: str) -> None:
    """What is left open is chosen by them, and so may everything else have been; under whichever client's name."""
    sets = SCHEMES["split"] if scheme == "split" else ()
    trained = train(tiny(*sets, "report.certify.independent=true", "federation.rounds=1"))
    name = "existing" if scheme == "split" else "new"
    group = trained.groups[name].raw
    bound = trained.bound_rows if scheme == "split" else group.train
    assert bound is not None
    before = repeats_of(trained, name, bound).n
    existing = trained.groups["existing"]
    one = bound.select(torch.tensor([0])).rows(torch.arange(2).expand(1, -1))  # two rows of the first client
    count = existing.raw.train.clients
    blank = existing.raw.train.rows(torch.zeros(count, 2, dtype=torch.int64))
    x, y = blank.x.clone(), blank.y.clone()
    x[1], y[1] = one.x[0].to(x), one.y[0].to(y)  # at the second client
    mask = torch.zeros_like(blank.mask)
    mask[1] = True
    raw = replace(existing.raw, validation=replace(blank, x=x, y=y, mask=mask))
    chosen = replace(trained, groups={**trained.groups, "existing": replace(existing, raw=raw)})
    after = repeats_of(chosen, name, bound).n
    assert (before - after).tolist() == [2.0, *[0.0] * (bound.clients - 1)]


def test_a_client_that_has_left_is_known_by_its_validation_rows_too() -> None:
    dataset = load(tiny())
    group = dataset.groups["existing"]
    apart = replace(group, validation=group.test)
    known = replace(dataset, groups={**dataset.groups, "existing": apart})
    plain, more = (held_rows.TrainingHistory().extended(tiny(), one, one) for one in (dataset, known))
    for k, name in enumerate(group.train.names):
        assert len(plain.clients[name].cells) == twins.GRIDS * group.train.size[k]
        assert len(more.clients[name].cells) == twins.GRIDS * (group.train.size[k] + group.test.size[k])


def test_folds_are_those_of_the_method_under_a_temperature(tmp_path: Path) -> None:
    counts = []
    for other in ("existing_1", "existing_2", "existing_3"):
        path = write_csv(tmp_path / "rows.csv", copied(table(), "existing_0", other))
        trained = train(on_csv(path, *COUNTED, *SCHEMES["folds"]))
        for one in (trained, replace(trained, method=Tempered(trained.method, 2.0))):
            result = repeats_of(one, "existing", one.groups["existing"].raw.train)
            counts.append(dict(zip(one.groups["existing"].train.names, result.n.tolist(), strict=True)))
    assert counts[::2] == counts[1::2]
    assert {count["existing_0"] for count in counts} == {0.0, 10.0}  # in another fold, and in its own


def test_averages_count_no_row_that_two_clients_have(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", copied(table(), "new_0", "new_1") + of("existing_2", table()))
    sets = (*COUNTED, SCHEMES["split"][0], "report.certify.drawn_clients=true")
    trained = train(on_csv(path, *sets))
    both = certify(trained, Request("new-clients"))
    assert not both.clients and both.reasons == {
        "new": [
            "an average needs rows of every client, and of new_0 none of its 10 rows counts:"
            " its prior saw them, under whatever name, or another client of the average has them too"
        ]
    }
    assert "new" not in certify(trained, Request()).summary
    (line,) = certify(trained, Request("server")).clients
    apart = repeats_of(trained, "existing", trained.bound_rows, independent=True)  # type: ignore[arg-type]
    assert line.rows == int(apart.n.sum()) < int(trained.bound_rows.size.sum())  # type: ignore[union-attr]
    assert line.rows + line.repeats == int(trained.bound_rows.size.sum())  # type: ignore[union-attr]


def test_values_that_repeat_by_nature_cost_rows_and_say_how_many(tmp_path: Path) -> None:
    whole = [row | {"lag_1": float(i % 4), "wind": 0.0, "y": float(i % 2)} for i, row in enumerate(table())]
    mixed = [row | ({"wind": 0.0, "y": 0.0, "lag_1": 0.0} if i % 2 else {}) for i, row in enumerate(table())]
    for name, some in (("grid", whole), ("night", mixed)):
        trained = train(on_csv(write_csv(tmp_path / f"{name}.csv", some), *COUNTED))
        certified = certify(trained, Request())
        for line in certified.clients:
            assert line.group == "new" and line.rows + line.repeats == 10
        assert [line.rows for line in certified.clients] == ([] if name == "grid" else [5, 5])
        if name == "grid":
            assert "none of its 10 rows counts" in certified.labels["left_out"]["new_0"]


def test_a_wider_tolerance_finds_coarser_copies(tmp_path: Path) -> None:
    whole = table()
    rounded = [row | {name: round(row[name], 2) for name in ("lag_1", "wind", "y")} for row in whole]
    path = write_csv(tmp_path / "rows.csv", whole + [row for row in rounded if row["split"] == "train"])
    counts = {}
    for width in ("0.0", "1e-4", "0.01"):
        certified = certify(train(on_csv(path, *COUNTED, f"report.certify.twins={width}")), Request())
        counts[width] = [line.rows for line in certified.clients]
    assert counts == {"0.0": [20, 20], "1e-4": [20, 20], "0.01": [10, 10]}


@pytest.mark.parametrize("seed", range(20))
def test_the_risk_is_the_largest_of_all_samples_that_may_be_the_clients_own(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    m = 7
    cluster = torch.randint(-1, 4, (m,), generator=generator)
    _, cluster = torch.cat((torch.tensor([-1]), cluster)).unique(return_inverse=True)
    cluster = cluster[1:] - 1  # without gaps
    losses = torch.rand(3, m, generator=generator, dtype=torch.float64).round(decimals=1)
    wanted = set(cluster.tolist()) - {-1}
    padded = torch.cat((cluster, torch.tensor([-2, -2]))).unsqueeze(0)
    result = Repeats(padded, False)
    assert (int(result.n[0]), int(result.left_out[0])) == (len(wanted), m - len(wanted))
    if not wanted:
        assert bool(result.risk(torch.zeros(1, m + 2)).isnan().all())
        return
    sets = [list(s) for size in range(1, m + 1) for s in itertools.combinations(range(m), size)]
    allowed = [s for s in sets if wanted <= set(cluster[s].tolist())]
    expected = torch.stack([losses[:, s].mean(1) for s in allowed]).amax(0)
    filled = torch.cat((losses, torch.zeros(3, 2)), 1).unsqueeze(0)
    assert result.risk(filled)[0].tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert float(result.risk(filled[:, 0])[0]) == pytest.approx(float(expected[0]), abs=1e-12)


def test_without_repeats_the_risk_is_the_mean_to_the_bit() -> None:
    losses = torch.rand(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cluster = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, -2, -2, -2]])
    result = Repeats(cluster, False).risk(losses)
    assert result.tolist() == [float(losses[0].mean()), float(losses[1, :3].mean())]


def test_an_exact_gibbs_posterior_pays_for_repeats_too(tmp_path: Path) -> None:
    quickly = [one for one in quick("pac-pfl-bnn") if "importance_draws" not in one and "posterior" not in one]
    sets = (*quickly, "method.posterior=importance", "method.importance_draws=20")
    values = []
    for times in (1, 3):
        whole = [row for row in table() for _ in range(times if row["group"] == "new" else 1)]
        trained = train(on_csv(write_csv(tmp_path / "rows.csv", whole), *COUNTED, *sets))
        lines = certify(trained, Request("gibbs", beta=5.0, loss=SaturatingSquare(10.0))).clients
        assert [line.rows for line in lines] == [10, 10]
        values.append([line.bound for line in lines])
    # the Gibbs posterior of thrice the rows is the same, but further copies of the worst ones may be the client's own
    assert all(after > before + 1e-3 for before, after in zip(*values, strict=True))


def test_a_beta_is_fixed_by_all_rows_and_not_by_those_that_count(tmp_path: Path) -> None:
    whole = [row for row in table() for _ in range(3)]
    trained = train(on_csv(write_csv(tmp_path / "rows.csv", whole), *COUNTED, "report.certify.drawn_clients=true"))
    terms = certify(trained, Request("catoni", beta="rows")).certificates["new"]["terms"]
    assert (terms["n"], terms["beta"]) == ([10.0, 10.0], [30.0, 30.0])
    terms = certify(trained, Request("new-clients", beta="rows")).certificates["new"]["terms"]
    assert (terms["m"], terms["beta"]) == (10.0, 30.0)


def test_a_run_on_generated_rows_has_no_repeats() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    assert trained.bound_rows is not None
    result = repeats_of(trained, "existing", trained.bound_rows)
    assert result.n.tolist() == trained.bound_rows.size.tolist() and not result.shared
    assert not bool(result.left_out.any())

"""Clients and rows that are held out, and what they say of the number of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any, cast

import pytest
import torch
from scipy.stats import trim_mean
from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.division import Cut
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.methods.recipe import Margin
from pacbayes_fl.posteriors.residuals import held_out_errors, pooled, recalibrated, shape_of_errors
from pacbayes_fl.study.config.choices import NOISE, candidates, with_value
from pacbayes_fl.study.data import ScaledGroup, load
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search import path
from pacbayes_fl.study.search.path import BLOCKS, Path, deal, follow
from pacbayes_fl.study.search.scores import HeldOutScore
from tests.tiny import TABLE, on_csv, quick, rows, tiny, write_csv


def dataset(sizes: list[int], labels: bool = False) -> tables.Dataset:
    """Clients with rows x = 0, 1, 2, ..., whose targets are these, or labels of three kinds."""
    parts = []
    for size in sizes:
        x = torch.arange(size, dtype=torch.float64).unsqueeze(-1)
        parts.append((x, (torch.arange(size) % 3) if labels else x[:, 0]))
    ids = list(range(len(sizes)))
    train = ClientBatch.stack(parts, [f"c{k}" for k in ids], ids)
    return replace(load(tiny()), groups={"existing": tables.Group(train, train)}, classes=3 if labels else None)


def held_rows(part: tables.Dataset) -> dict[str, list[float]]:
    return {
        name: group.test.x[k, group.test.mask[k], 0].tolist()
        for group in part.groups.values()
        for k, name in enumerate(group.test.names)
    }


def test_every_client_and_every_row_is_held_out_in_one_part() -> None:
    whole = dataset([20, 11, 5, 7, 9, 10, 6, 13, 8, 12])
    parts = [deal(whole, 3, part) for part in range(BLOCKS)]
    new = [set(part.groups["new"].train.names) for part in parts if part is not None]
    assert sorted(name for names in new for name in names) == sorted(whole.groups["existing"].train.names)
    for k, size in enumerate(whole.groups["existing"].train.size.long().tolist()):
        held = [held_rows(part)[f"c{k}"] for part in parts if part is not None]
        assert sorted(row for rows in held for row in rows) == list(range(size))
        assert held[0][-1] == size - 1, "the last rows first"
    first = parts[0]
    assert first is not None
    for group in first.groups.values():
        both = torch.cat((group.train.size, group.test.size)).reshape(2, -1).sum(0).tolist()
        assert both == [whole.groups["existing"].train.size[int(name[1:])] for name in group.train.names]
    other = deal(whole, 4, 0)
    assert other is not None and other.groups["new"].train.names != first.groups["new"].train.names


def test_who_is_held_out_does_not_depend_on_the_order_of_clients() -> None:
    whole = dataset([20, 11, 5, 7, 9, 10, 6])
    turned = whole.groups["existing"].select(torch.tensor([4, 6, 0, 2, 5, 1, 3]))
    for part in range(BLOCKS):
        dealt = [deal(replace(whole, groups={"existing": one}), 3, part) for one in (whole.groups["existing"], turned)]
        first, second = ({label: {*one.train.names} for label, one in each.groups.items()} for each in dealt if each)
        assert first == second


@pytest.mark.parametrize(
    ("sizes", "new", "held"),
    [([1, 2, 3, 4], 1, [0, 1, 1, 1]), ([5, 1], 0, [1, 0]), ([9], 0, [2])],
)
def test_few_rows_and_few_clients_hold_out_what_they_can(sizes: list[int], new: int, held: list[int]) -> None:
    part = deal(dataset(sizes), 0, 0)
    assert part is not None and len(part.groups["existing"].train.names) == len(sizes) - new
    assert [len(held_rows(part)[f"c{k}"]) for k in range(len(sizes))] == held


@pytest.mark.parametrize(
    "cut",
    [
        Cut(by="split", column="split", last=None),
        Cut(by="file", column=None, last="0.25"),
        Cut(by="rows", column=None, last="0.25"),
        Cut(by="time", column="when", last="14 days"),
    ],
)
def test_later_rows_do_not_tell_of_earlier_ones_where_test_rows_are_the_last(cut: Cut) -> None:
    """Nobody is left without a row to train on."""
    whole = replace(dataset([20, 11, 5, 2]), provenance={"cut": cut})
    for part in range(path.PARTS):
        dealt = deal(whole, 0, part)
        assert dealt is not None
        held = held_rows(dealt)
        for group in dealt.groups.values():
            for k, name in enumerate(group.train.names):
                own = group.train.x[k, group.train.mask[k], 0].tolist()
                size = int(whole.groups["existing"].train.size[int(name[1:])])
                late = part == 1 and cut["by"] != "split" and size > 2
                kept = [row for row in range(size) if row not in held[name] and (not late or row < held[name][0])]
                assert own == kept and held[name]


@pytest.mark.parametrize(
    ("cut", "late"),
    [("by order", True), ("by column", False), ("by column, times", True), ("by column, times turned", False)],
)
def test_whether_test_rows_are_later_is_read_off_a_table(cut: str, late: bool, tmp_path: FilePath) -> None:
    """By how its loader cut it, or by its times, and not by the order of its rows where a column cuts it."""
    table = rows(2)
    if cut == "by order":
        table = [{name: value for name, value in row.items() if name != "split"} for row in table]
    if "times" in cut:
        table = [{**row, "t": -at if cut.endswith("turned") else at} for at, row in enumerate(table)]
    known = load(on_csv(write_csv(tmp_path / "a.csv", table), *(["data.time=t"] if "times" in cut else [])))
    dealt = deal(known, 0, 1)
    assert dealt is not None
    both = sum(int(one.size.sum()) for group in dealt.groups.values() for one in (group.train, group.test))
    assert (both < int(known.groups["existing"].train.size.sum())) == late


def test_single_rows_leave_nothing_to_choose_by() -> None:
    assert deal(dataset([1, 1, 1, 1]), 0, 0) is None and follow(tiny(), dataset([1, 1, 1, 1]), (2,)) == Path()


def test_labels_are_dealt_one_by_one() -> None:
    part = deal(dataset([15, 15, 15], labels=True), 0, 1)
    assert part is not None
    for group in part.groups.values():
        assert all(sorted(y[mask].tolist()) == [0, 1, 2] for y, mask in zip(group.test.y, group.test.mask, strict=True))


def with_tau(study: Study, tau: float) -> Study:
    return replace(study, method=replace(study.method, options=replace(cast(Any, study.method.options), tau=tau)))


def federations(study: Study) -> Iterator[list[tuple[ScaledGroup, Any]]]:
    """Train the federations of a path by hand: rows of their groups, and posteriors of who trained and who joins."""
    for number in range(path.PARTS):
        part = deal(load(study), study.seed, number)
        assert part is not None
        share = part.groups["existing"].train.size.sum() / load(study).groups["existing"].train.size.sum()
        assert 0.4 < share < 0.8
        method, groups = prepare(with_tau(study, 1.0 / float(share)), part)
        assert "new" in groups
        server = engine.run_rounds(method, groups["existing"].train, study.plan).server
        yield [(one, personalisation.join(method, server, one.train, study.seed)) for one in groups.values()]


def errors_in(group: ScaledGroup, posterior: Any) -> Tensor:
    return held_out_errors(posterior.predict(group.test.x), group.test.y, group.test.mask, group.train.size)


OPEN = ("federation.rounds=held-out", "model.residuals=mixture")


def test_errors_are_those_of_the_held_out_rows_of_all_federations() -> None:
    study, settled = tiny(*OPEN), tiny(*OPEN, "federation.rounds=4")
    result = follow(study, load(study), (2, 4), final=True)
    sent = [errors_in(*each) for one in federations(settled) for each in one]
    torch.testing.assert_close(torch.tensor(result.errors[4], dtype=torch.float64), pooled(torch.cat(sent)))
    assert result.errors.keys() == {2, 4} and result.errors[2] != result.errors[4]
    for final, other in ((True, "model.residuals=gaussian"), (True, "model.residual_share=0"), (False, OPEN[0])):
        plain = tiny(*OPEN, other)
        assert follow(plain, load(plain), (2,), final=final).errors == {}


@pytest.mark.parametrize("beyond", [False, True])
def test_rows_are_scored_under_the_errors_of_other_clients_where_rounds_are_chosen(
    beyond: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the federation's residuals half are those of held-out rows then, but for extrapolations; by hand."""
    monkeypatch.setattr(path, "beyond_training", lambda _: beyond)
    study, settled = tiny(*OPEN), tiny(*OPEN, "federation.rounds=4")
    result, expected = follow(study, load(study), (2, 4), final=True), list[float]()
    for one in federations(settled):
        left_out = pooled(shape_of_errors(one[0][1].leave_one_out()))
        errors = [errors_in(*each) for each in one]
        for g, (group, posterior) in enumerate(one):
            for k in range(group.test.clients):
                rest = [each[[i for i in range(len(each)) if (h, i) != (g, k)]] for h, each in enumerate(errors)]
                others = left_out if beyond else 0.5 * (left_out + pooled(torch.cat(rest)))
                known = recalibrated(posterior, others, study.model.residual_share).predict(group.test.x)
                density = known.log_prob(group.test.y)[k][group.test.mask[k]]
                expected.append(float(density.clamp_min(-50.0).mean()))
    assert result.clients[4] == pytest.approx(expected, rel=1e-9)
    assert result.scores[4] == pytest.approx(sum(expected) / len(expected), rel=1e-9)


@pytest.mark.parametrize("share", [0, 0.5])
def test_the_score_is_that_of_federations_without_clients_and_rows(share: float) -> None:
    """Those who trained and those who join are asked for their held-out rows."""
    study = tiny("federation.rounds=4", f"federation.average_last={share}")
    told: list[tuple[int, float]] = []
    result = follow(study, load(study), (2, 4), lambda *one: told.append(one))
    expected = []
    for one in federations(study):
        scores = []
        for group, posterior in one:
            density = posterior.predict(group.test.x).log_prob(group.test.y)
            scores += (torch.where(group.test.mask, density.clamp_min(-50.0), 0.0).sum(1) / group.test.size).tolist()
        assert len(scores) == 4
        expected.append(sum(scores) / 4)
    assert result.scores[4] == pytest.approx(sum(expected) / 2, rel=1e-9) and told == list(result.scores.items())
    assert result.objective == "log_evidence" and result.objectives.keys() == {2, 4} == result.scores.keys()


def test_test_rows_and_new_clients_are_not_looked_at() -> None:
    study = tiny("federation.rounds=2")
    whole = load(study)
    existing, new = whole.groups["existing"], whole.groups["new"]
    poisoned = replace(existing, test=replace(existing.test, x=existing.test.x * math.nan))
    other = replace(whole, groups={"existing": poisoned, "new": replace(new, train=new.test)})
    assert follow(study, other, (2,)) == follow(study, whole, (2,))


class Scripted:
    """A federation whose scores are known."""

    values = (-1.0, -0.5, -0.7, -0.6, -0.8, -0.1)

    def __init__(self, *_: Any) -> None:
        self.method = tiny_method()

    def advance(self, mark: int) -> path._Reached:
        """Look the score up, of two clients."""
        scores = self.values[mark - 1] + torch.tensor([-0.1, 0.1])
        return path._Reached(scores.unsqueeze(0), float(mark), torch.zeros(2, 0))


def tiny_method() -> Any:
    return prepare(tiny(), load(tiny()))[0]


def test_a_path_ends_after_three_marks_that_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "_Trial", Scripted)
    result = follow(tiny(), load(tiny()), (1, 2, 3, 4, 5, 6))
    assert list(result.scores) == [1, 2, 3, 4, 5] and result.best == 2 and result.failure is None


def test_a_path_that_rises_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "_Trial", Scripted)
    monkeypatch.setattr(Scripted, "values", (-0.5, -0.8, -0.7, -0.6, -0.9, -0.1))
    assert list(follow(tiny(), load(tiny()), (1, 2, 3, 4, 5, 6)).scores) == [1, 2, 3, 4, 5]


def test_a_path_that_rises_below_a_start_that_is_clearly_better_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "_Trial", Scripted)
    scores = (-0.5, -0.8, -0.7, -0.6, -0.1)
    for start, last in ((-0.2, 4), (-0.65, 5)):
        monkeypatch.setattr(Scripted, "values", (*scores, start))  # the last one is that of mark 0
        assert [*follow(tiny(), load(tiny()), (0, 1, 2, 3, 4, 5)).scores][-1] == last


def test_a_path_ends_where_a_rival_is_clearly_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "_Trial", Scripted)
    alone = follow(tiny(), load(tiny()), (1, 2, 3, 4))
    lost = replace(alone, clients={mark: [math.nan, -math.inf, 0.0, 0.0] for mark in alone.clients})
    assert follow(tiny(), load(tiny()), (1, 2, 3, 4), rival=lost).scores == alone.scores
    level = replace(alone, clients={mark: [one + 0.1 for one in of] for mark, of in alone.clients.items()})
    assert follow(tiny(), load(tiny()), (1, 2, 3, 4), rival=alone).scores == alone.scores
    ahead = replace(level, clients={2: level.clients[2]})
    assert list(follow(tiny(), load(tiny()), (1, 2, 3, 4), rival=ahead).scores) == [1, 2]


@pytest.mark.parametrize(
    ("ended", "best", "failure", "last"),
    [
        (2, -0.45, None, 2),
        (3, -0.45, None, 3),
        (2, -0.55, None, 5),  # ahead of it after 2 rounds, and no worse for later ones
        (2, -0.45, "client 'b' failed", 5),  # of what it would have come to nobody knows
        (4, math.nan, None, 5),
    ],
)
def test_a_path_ends_where_a_rival_has_ended_and_was_not_worse(
    monkeypatch: pytest.MonkeyPatch, ended: int, best: float, failure: str | None, last: int
) -> None:
    monkeypatch.setattr(path, "_Trial", Scripted)
    rival = path.Path({1: best, ended: best - 1.0}, failure=failure)
    assert max(follow(tiny(), load(tiny()), (1, 2, 3, 4, 5, 6), rival=rival).scores) == last


@pytest.mark.parametrize(
    ("how", "ours", "ahead"),
    [
        ("mean", (-1.0, -1.0, 1.0, 9.0), True),
        ("mean", (0.0, 0.0, 0.0, 0.0), False),
        ("most", (1.0, 1.0, 1.0, -9.0), True),
        ("most", (-1.0, -1.0, 1.0, 9.0), False),  # two of four
        ("clearly", (0.0, 1.0, 1.0, 1.0), True),  # .75 with a standard error of .25
        ("clearly", (0.0, 0.0, 0.0, 2.0), False),  # .5 with one of .5
        ("clearly", (1.0,), False),  # of one client nobody knows
        ("clearly", (math.nan, 1.0), False),
    ],
)
def test_when_a_path_is_ahead_of_another(how: Margin, ours: tuple[float, ...], ahead: bool) -> None:
    def along(scores: tuple[float, ...]) -> Path:
        return Path({2: sum(scores) / len(scores), 4: -9.0}, clients={2: scores, 4: [-9.0] * len(scores)})

    level = along((0.0,) * len(ours))
    assert along(ours).ahead_of(level, how) == ahead
    assert not level.ahead_of(level, how) and not Path().ahead_of(level, how) and not level.ahead_of(Path(), how)


def test_a_fall_is_told_only_while_the_fit_gets_better() -> None:
    falls = Path({1: -1.0, 2: -1.5}, {1: -20.0, 2: -15.0}, "log_evidence")
    said = falls.remark()
    assert said is not None and "from round 1 to round 2 the mean log evidence" in said and "-1 to -1.5 nats" in said
    assert replace(falls, objectives={1: -15.0, 2: -20.0}).remark() is None
    assert replace(falls, objective="loss").remark() is None
    assert replace(falls, objective="loss", objectives={1: 2.0, 2: 1.0}).remark() is not None
    assert replace(falls, scores={1: -1.0, 2: -1.02}).remark() is None
    assert replace(falls, objective=None).remark() is None and Path().remark() is None
    assert Path({1: math.nan, 2: -1.0, 3: -1.0}).best == 2, "the fewest of equals"


@pytest.mark.parametrize(("start", "best"), [((1.0, 1.1, 1.2), 0), ((1.0, -1.0, 2.0), 4), ((-1.0, -1.1, -1.2), 4)])
def test_the_start_is_the_best_where_it_is_clearly_better(start: tuple[float, ...], best: int) -> None:
    clients = {0: start, 2: (-1.0, -1.0, -1.0), 4: (0.0, 0.0, 0.0)}
    result = Path(
        {mark: sum(own) / 3 for mark, own in clients.items()}, {2: 1.0, 4: 2.0}, "log_evidence", None, clients
    )
    assert (result.best, result.trained) == (best, 4)
    said = result.remark()
    assert said is None if best else said is not None and said.endswith("1.1 nats per row and 0 after 4")
    assert Path({0: 1.0}, clients={0: start}).best is None


def test_the_start_does_not_end_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three marks in a row that are worse than the best end it, not those that are worse than the start."""
    scores = iter([9.0, 1.0, 2.0, 3.0, 4.0])
    reached = (path._Reached(torch.full((1, 2), score), 1.0, torch.zeros(2, 0)) for score in scores)
    monkeypatch.setattr(path._Trial, "advance", lambda self, mark: next(reached))
    result = follow(tiny(), load(tiny()), (0, 2, 3, 4, 5), parts=[0])
    assert [*result.scores] == [0, 2, 3, 4, 5] and [*result.objectives] == [2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "pooled-bnn"])
def test_every_noise_has_the_score_of_the_same_weights_with_that_noise(name: str, tmp_path: Path) -> None:
    """By hand: a federation that was trained with the usual noise, predicted by methods with each of the others."""
    source = write_csv(tmp_path / "rows.csv", rows(sizes=range(8, 20), new=()))
    sets = [*quick(name), f"data.source={source}", "model.noise_std=held-out", "model.kind=mlp", "model.dtype=float64"]
    table = {part: values for part, values in TABLE.items() if part not in ("model", "method")}
    study = Study.from_table(table, "tiny.toml", sets)
    result = follow(study, load(study), (3,), parts=[0])
    part = deal(load(study), study.seed, 0, study.data)
    assert part is not None
    plan = replace(study.plan, rounds=3)
    method, groups = prepare(study, part)
    state, of_noise = engine.run_rounds(method, groups["existing"].train, plan), dict[float, list[float]]()
    for noise_std in candidates(study, NOISE):
        other, scores = prepare(with_value(study, NOISE, noise_std), part)[0], list[float]()
        for group_name, group in groups.items():
            held, known = HeldOutScore(group), state_of(other, state, group_name, group)
            look = partial(lambda held, index, posterior: held.log_prob(posterior, index), held)
            for index, log_prob in personalisation.personalise(other, known, group.train, plan, look):
                held.add(log_prob, index)
            scores += held.by_client().tolist()
        assert len(scores) == 12 and result.noise[3][noise_std] == pytest.approx(trim_mean(scores, 0.1), rel=1e-9)
        of_noise[noise_std] = scores
    assert result.noise[3].keys() == {*candidates(study, NOISE)}
    best = max(result.noise[3], key=lambda noise_std: result.noise[3][noise_std])
    assert result.clients[3] == pytest.approx(of_noise[best]) and result.scores[3] == result.noise[3][best]

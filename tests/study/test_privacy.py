"""Private studies: what [privacy] means, what labels say, what is refused, and that no crash makes anything cheaper."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pacbayes_fl import cli, tensors
from pacbayes_fl.errors import CheckpointError, DataError, PacBayesFLError, PrivacyError, StudyError
from pacbayes_fl.federation import checkpoint, engine, federation_state
from pacbayes_fl.privacy import ledger, mechanisms
from pacbayes_fl.privacy.accounting import Budget, epsilon, noise_multiplier
from pacbayes_fl.privacy.charges import Charge, pure_epsilon, zcdp
from pacbayes_fl.privacy.guarantees import rounded
from pacbayes_fl.privacy.ledger import NAME, Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.privacy.shared_ledger import read
from pacbayes_fl.results import manifest
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import privacy
from pacbayes_fl.study import run as study
from pacbayes_fl.study.config.parts import PrivacyPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import choice_file, tune
from tests.tiny import (
    ROUNDS,
    assert_same_results,
    assert_same_state,
    on_csv,
    quick,
    rows,
    state,
    tiny,
    write_csv,
    write_study,
)

ANYTHING = Budget(1e300, 1e-9)
COORDINATES = 2 * 36  # two particles of the tiny study's prior
ON = "privacy.epsilon=10"
SEEDED = "privacy.epsilon_if_noise_were_secret=10"
"""The same budget in a simulation, which can be repeated."""


def run(folder: Path, *sets: str, resume: bool = False) -> Result:
    return study.run(tiny(*sets), folder, resume)


def said(result: Result) -> dict[str, Any]:
    about: dict[str, Any] = result.labels["privacy"]
    return about


def releases(folder: Path) -> int:
    return len(Ledger(folder, ANYTHING))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a private run that nobody disturbed; only to be read."""
    folder = tmp_path_factory.mktemp("private") / "run"
    run(folder, ON)
    return folder


FOLLOWING = ("privacy.clip_quantile=0.4", "privacy.clip=0.1", "privacy.mechanism=knorm")


CORRELATED = ("privacy.mechanism=dp-ftrl", "federation.cohort=2")


class Undisturbed(NamedTuple):
    """A simulation that nobody disturbed, to be read, and its options."""

    folder: Path
    sets: tuple[str, ...]


WITHIN = ("privacy.subspace=5", *CORRELATED)
FEW = 7
"""Rounds of them, each with a checkpoint: three before the later crash, and three after it."""


@pytest.fixture(
    scope="module", params=[(), FOLLOWING, CORRELATED, WITHIN], ids=["", "following", "dp-ftrl", "subspace"]
)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    sets = (SEEDED, f"federation.rounds={FEW}", *request.param)
    run(folder, *sets)
    return Undisturbed(folder, sets)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the same run in a simulation; only to be read."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    run(folder, SEEDED)
    return folder


# what a run says ------------------------------------------------------------------------------------------------


def test_one_option_makes_a_run_private_and_its_labels_say_what_that_gives(finished: Path) -> None:
    result = results.load(finished)
    about, cohorts = said(result), Cohorts(4)
    multiplier = noise_multiplier("gaussian", Budget(10.0, 0.025), ROUNDS, cohorts)
    charges = [Charge("gaussian", multiplier, COORDINATES, cohorts)] * ROUNDS
    assert Ledger(finished, ANYTHING).charges == tuple(charges)
    assert about["epsilon"] == epsilon(charges, 0.025) <= 10 < epsilon([*charges, charges[0]], 0.025)
    assert about["rho"] == zcdp(charges) == pytest.approx(ROUNDS / 2 / multiplier**2)
    statement = about.pop("statement")
    assert about == {
        "mechanism": "gaussian",
        "clip": 1.0,
        "multiplier": multiplier,
        "epsilon": about["epsilon"],
        "delta": 0.1 / 4,
        "rho": about["rho"],
        "pure": None,
        "claimed": None,
        "cohort": "all",
        "neighbours": "add-or-remove",
        "releases": ROUNDS,
        "outside": {},
        "rounds": ROUNDS,
        "randomness": "system",
        "remarks": about["remarks"],
    }
    assert f"({rounded(about['epsilon'])}, 0.025)-DP" in statement and "sum of 4 clients" in statement
    assert "for whole clients (one that sends zeros instead) from" in statement
    assert "seed" not in statement and "test scores" in statement and "outside of the guarantee" in statement


def test_a_simulation_says_what_would_hold_if_its_noise_were_secret(simulated: Path, finished: Path) -> None:
    about, real = said(results.load(simulated)), said(results.load(finished))
    for name in ("epsilon", "rho", "pure"):
        assert about[f"{name}_if_noise_were_secret"] == real[name] and name not in about
    assert {name: about[name] for name in ("delta", "multiplier", "cohort", "releases")} == {
        name: real[name] for name in ("delta", "multiplier", "cohort", "releases")
    }
    assert about["statement"].startswith("a simulation: its noise comes from the seed and hides nothing")
    assert f"epsilon_if_noise_were_secret = {rounded(real['epsilon'])} at delta = 0.025 for whole" in about["statement"]
    for mine, theirs in zip(results.load(simulated).rounds, results.load(finished).rounds, strict=True):
        assert mine.values["epsilon_if_noise_were_secret"] == theirs.values["epsilon"]
        assert "epsilon" not in mine.values


def test_asking_for_the_epsilon_of_a_simulation_asks_for_a_simulation() -> None:
    one, other = tiny(SEEDED), tiny(ON, "privacy.randomness=simulation")
    assert one == other == Study.from_table(one.table()) and one.privacy.epsilon == 10.0
    assert "epsilon" not in one.table()["privacy"] and tiny(ON).table()["privacy"]["epsilon"] == 10.0
    again = Study.from_table(one.table(), "again", ["privacy.epsilon=20"])  # another budget of the same simulation
    assert (again.privacy.epsilon, again.privacy.randomness) == (20.0, "simulation")
    for sets in ((SEEDED, "privacy.randomness=system"), (SEEDED, ON)):
        with pytest.raises(PrivacyError, match="is the epsilon of a simulation alone"):
            tiny(*sets)


@pytest.mark.parametrize(
    ("clients", "given", "above"),
    [
        (4, None, "above 0.001 for N = 4"),
        (150, None, ""),  # 0.1 / N = 6.7e-4
        (150, "0.0009", ""),
        (1000, "0.00099", r"above N\^-1.1 = 0.000501 for N = 1000"),
        (1000, "0.0005", ""),
        (50, "0.015", r"above 0.001 and above N\^-1.1 = 0.0135 for N = 50"),
    ],
)
def test_a_delta_that_is_weak_is_remarked(clients: int, given: str | None, above: str) -> None:
    delta = 0.1 / clients if given is None else float(given)
    remarks = privacy._remarks(delta, clients)
    assert len(remarks) == bool(above) and all(re.search(above, one) for one in remarks)
    if remarks:
        less = re.search(r"such as (\S+)$", remarks[0])
        assert less is not None and not privacy._remarks(float(less[1]), clients)


def test_the_remark_is_a_warning_and_stands_in_the_labels(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"delta = 0.025 is above 0.001 for N = 4 clients, which is weak"):
        about = said(run(tmp_path / "weak", ON, "federation.rounds=1"))
    assert about["remarks"] and about["remarks"][0] in about["statement"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        about = said(run(tmp_path / "strong", ON, "federation.rounds=1", "privacy.delta=0.0001"))
    assert about["remarks"] == [] and "weak" not in about["statement"]


def test_what_was_spent_so_far_stands_beside_the_learning_curve(finished: Path) -> None:
    records = results.load(finished).rounds
    charge = Ledger(finished, ANYTHING).charges[0]
    assert [record.round for record in records] == [*range(1, ROUNDS + 1)]
    for record in records:
        assert record.values.keys() == {"score_norm", "spread", "rsmse", "epsilon"}
        assert record.values["epsilon"] == epsilon([charge] * record.round, 0.025)
        assert (record.clients, record.dropped) == (4, ())
    few = run(finished.parent / "few", ON, "report.evaluate_every=5").rounds
    assert [record.round for record in few if "epsilon" in record.values] == [5, 10, 12]


def test_a_run_that_is_not_private_says_nothing(tmp_path: Path) -> None:
    assert "privacy" not in run(tmp_path / "run").labels and not (tmp_path / "run" / NAME).exists()
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None and "released" not in saved.meta


def test_the_command_prints_the_statement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = write_study(tmp_path), tmp_path / "run"
    assert cli.main(["run", str(path), "--set", ON, "--out", str(folder), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert f"privacy: {said(results.load(folder))['statement']}\n" in printed
    assert cli.main(["show", str(folder)]) == 0 and "-DP; " in capsys.readouterr().out


@pytest.mark.slow
def test_the_guarantee_depends_on_what_was_asked_for(tmp_path: Path) -> None:
    pure = said(run(tmp_path / "pure", ON, "privacy.mechanism=laplace", "privacy.clip=0.5"))
    assert (pure["delta"], pure["clip"], pure["neighbours"]) == (0.0, 0.5, "add-or-remove")
    assert pure["epsilon"] == pure["pure"] == pytest.approx(10.0) and pure["multiplier"] == pytest.approx(1.2)
    known = said(run(tmp_path / "knorm", ON, "privacy.mechanism=knorm", "privacy.neighbours=replace"))
    assert known["epsilon"] == pytest.approx(10.0) and known["multiplier"] == pytest.approx(2.4)
    assert "(10, 0)-DP; " in pure["statement"] and "pure epsilon" not in pure["statement"]
    system = said(run(tmp_path / "system", ON, "privacy.randomness=system"))
    assert system["randomness"] == "system" and "seed" not in system["statement"]
    mine = said(run(tmp_path / "mine", ON, "privacy.multiplier=50", "privacy.delta=0.001"))
    assert mine["epsilon"] == epsilon([Charge("gaussian", 50.0, COORDINATES, Cohorts(4))] * ROUNDS, 0.001) < 10


@pytest.mark.law
@pytest.mark.parametrize(
    ("sets", "kind", "neighbours", "clients"),
    [
        (["federation.cohort=2"], "poisson", "add-or-remove", 2),
        (["federation.cohort=9"], "poisson", "add-or-remove", 4),
        (["federation.cohort=2", "privacy.cohort=fixed"], "fixed", "replace", 2),
        (["federation.cohort=2", "privacy.cohort=all"], "all", "replace", 2),
        (["federation.cohort=4", "privacy.cohort=all"], "all", "add-or-remove", 4),
        (["federation.cohort=2", "privacy.cohort=in-order"], "in-order", "add-or-remove", 2),
        (["federation.cohort=2", "privacy.mechanism=dp-ftrl"], "in-order", "add-or-remove", 2),
        (["privacy.neighbours=replace"], "all", "replace", 4),
        (["privacy.mechanism=paper_algorithm_3"], "all", "replace", 4),
        (["privacy.mechanism=paper_algorithm_3", "federation.cohort=2"], "fixed", "replace", 2),
        ([*quick("pfedbayes"), "federation.cohort=2"], "poisson", "add-or-remove", 2),  # whose clients remember
        ([*quick("bpfed"), "federation.cohort=2", "privacy.mechanism=paper_algorithm_3"], "all", "replace", 2),
        (
            [*quick("bpfed"), "federation.cohort=2", "privacy.mechanism=paper_algorithm_3", "federation.train=all"],
            "fixed",
            "replace",
            2,
        ),
    ],
)
def test_cohorts_and_neighbours_that_are_not_given(
    tmp_path: Path, sets: list[str], kind: str, neighbours: str, clients: int
) -> None:
    size = [] if "paper_algorithm_3" in str(sets) else ["privacy.multiplier=5"]
    result = run(tmp_path, ON, "federation.rounds=3", "report.evaluate_every=3", *size, *sets)
    about = said(result)
    assert (about["cohort"], about["neighbours"]) == (kind, neighbours)
    assert {record.clients for record in result.rounds} == {clients}
    charge = Ledger(tmp_path, ANYTHING).charges[0]
    assert (charge.cohorts.clients, charge.cohorts.divisor) == (4, clients)


def test_algorithm_3_says_what_it_gives_beside_what_it_claims(tmp_path: Path) -> None:
    """rho = 2 epsilon^2 / T and pure 2 sqrt(D) epsilon."""
    result = run(tmp_path, "privacy.epsilon=3", "privacy.mechanism=paper_algorithm_3")
    about = said(result)
    assert (about["claimed"], about["multiplier"], len(result.rounds)) == (3.0, ROUNDS / 3, ROUNDS)
    assert about["rho"] == pytest.approx(2 * 9 / ROUNDS)
    assert about["pure"] == pytest.approx(2 * math.sqrt(COORDINATES) * 3)
    charges = Ledger(tmp_path, ANYTHING).charges
    assert about["pure"] == pure_epsilon(charges) and about["epsilon"] == epsilon(charges, 0.025) != 3.0
    assert about["epsilon"] > 3
    assert "claims epsilon = 3" in about["statement"] and "does not hold" in about["statement"]
    assert f"({rounded(about['epsilon'])}, 0.025)-DP" in about["statement"]


def test_a_clip_that_follows_norms_costs_what_one_that_stays_does_and_says_what_it_is(tmp_path: Path) -> None:
    """The budget's multiplier pays for sum and count: less than 1.06 of it is left on the updates by default."""
    result = run(tmp_path, ON, "privacy.clip_quantile=0.4", "privacy.clip=0.1")
    about, cohorts = said(result), Cohorts(4)
    multiplier = noise_multiplier("gaussian", Budget(10.0, 0.025), ROUNDS, cohorts)
    assert Ledger(tmp_path, ANYTHING).charges == (Charge("gaussian", multiplier, COORDINATES + 1, cohorts),) * ROUNDS
    assert (about["multiplier"], about["clip"], about["clip_quantile"]) == (multiplier, 0.1, 0.4)
    noise = (
        f"gaussian noise of {multiplier / math.sqrt(0.9):.4g} times the clip, which begins at 0.1 and follows the 0.4"
    )
    counts = f"(counts with noise of {multiplier / 2 / math.sqrt(0.1):.4g} clients are part of the releases)"
    assert noise in about["statement"] and counts in about["statement"]
    clips = [record.values["clip"] for record in result.rounds]
    shares = [record.values["below_clip"] for record in result.rounds]
    assert clips[0] == 0.1 and len(set(clips)) == ROUNDS
    for now, share, then in zip(clips, shares, clips[1:], strict=False):
        assert then == pytest.approx(now * math.exp(-0.2 * (share - 0.4)), rel=1e-12)
    saved = checkpoint.load(tmp_path)
    assert saved is not None and saved.meta["watch"]["clip"] == pytest.approx(
        clips[-1] * math.exp(-0.2 * (shares[-1] - 0.4)), rel=1e-12
    )
    with pytest.raises(CheckpointError, match="clip_quantile"):
        run(tmp_path, ON, "privacy.clip_quantile=0.6", "privacy.clip=0.1", resume=True)


@pytest.mark.law
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "knorm"])
def test_a_subspace_costs_what_messages_of_its_dimension_cost_and_the_label_says_so(
    tmp_path: Path, mechanism: str
) -> None:
    about = said(run(tmp_path, ON, "privacy.subspace=5", f"privacy.mechanism={mechanism}"))
    multiplier = about["multiplier"]
    assert Ledger(tmp_path, ANYTHING).charges == (Charge(mechanism, multiplier, 5, Cohorts(4)),) * ROUNDS
    assert about["epsilon"] <= 10 and about["subspace"] == 5
    assert f"of the {COORDINATES} numbers of a message nothing leaves but 5 random directions" in about["statement"]
    with pytest.raises(CheckpointError, match="subspace"):
        run(tmp_path, ON, "privacy.subspace=6", f"privacy.mechanism={mechanism}", resume=True)


def test_the_server_moves_within_the_subspace_alone(tmp_path: Path) -> None:
    """FedAvg, whose server adds releases: after any number of rounds it is k numbers away from its start."""
    sets = (*quick("fedavg"), "method.weighting=uniform", "privacy.epsilon=10", "privacy.subspace=3")
    folders = [tmp_path / f"{rounds}" for rounds in (2, 4, 6, 8, 10)]
    for rounds, folder in zip((2, 4, 6, 8, 10), folders, strict=True):
        run(folder, *sets, f"federation.rounds={rounds}")
    states = [checkpoint.load(folder) for folder in folders]
    points = torch.stack([saved.tensors["server.theta"] for saved in states if saved is not None])
    apart = torch.linalg.svdvals(points - points[0])
    assert float(apart[2]) > 1e-4 * float(apart[0]) and float(apart[3]) < 1e-4 * float(apart[2])


def test_a_count_that_would_cost_more_than_the_budget_is_refused_before_anything(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"noise of 0\.05 on the share of clients below the clip costs more than"):
        run(tmp_path / "run", "privacy.epsilon=1", "privacy.clip_quantile=0.5", "privacy.clip_noise=0.05")
    assert not (tmp_path / "run").exists()


def test_cohorts_in_order_pay_for_the_rounds_that_a_client_takes_part_in(tmp_path: Path) -> None:
    """Twelve rounds of half of the clients cost what six of all of them do, and labels say so."""
    about = said(run(tmp_path, ON, "privacy.mechanism=dp-ftrl", "federation.cohort=2"))
    multiplier = about["multiplier"]
    least = noise_multiplier("gaussian", Budget(10.0, 0.025), ROUNDS // 2, Cohorts(4))
    charges = [Charge("gaussian", multiplier, COORDINATES, Cohorts(4))] * (ROUNDS // 2)
    assert multiplier == pytest.approx(least, rel=1e-3) and about["releases"] == releases(tmp_path) == ROUNDS
    assert about["epsilon"] == epsilon(charges, 0.025) <= 10 and about["rho"] == zcdp(charges)
    noise = f"dp-ftrl noise of {math.hypot(1, 0.5) * multiplier:.4g} times the clip 1, which cancels over 2 rounds,"
    order = "on the sum of 2 of 4 clients in an order that anybody may know, each in at most one of 2 rounds in a row"
    assert noise in about["statement"] and order in about["statement"]


def test_the_mean_of_the_last_servers_is_made_of_releases_and_costs_nothing(simulated: Path, tmp_path: Path) -> None:
    result = run(tmp_path, SEEDED, "federation.average_last=0.5")
    assert (tmp_path / NAME).read_bytes() == (simulated / NAME).read_bytes()
    assert said(result)["epsilon_if_noise_were_secret"] == said(results.load(simulated))["epsilon_if_noise_were_secret"]
    mine, plain = state(tmp_path), state(simulated)
    assert all(torch.equal(mine[name], tensor) for name, tensor in plain.items())
    assert {name.split(".")[0] for name in mine.keys() - plain.keys()} == {"average"}
    with pytest.raises(StudyError, match="every round chooses one of a list of priors"):
        chosen = ("privacy.mechanism=exponential", "method.particles=1", "federation.average_last=0.5")
        run(tmp_path / "chosen", ON, *chosen)


def test_steps_of_the_server_are_made_of_releases_and_cost_nothing(tmp_path: Path) -> None:
    options = (*quick("pfedbayes"), "method.weighting=uniform", "federation.rounds=3", SEEDED)
    plain = said(run(tmp_path / "plain", *options))
    for name, changes in (
        ("momentum", ("method.server_momentum=0.9",)),
        ("adam", ("method.server=adam", "method.server_rate=0.1")),
    ):
        assert said(run(tmp_path / name, *options, *changes)) == plain
        assert (tmp_path / name / NAME).read_bytes() == (tmp_path / "plain" / NAME).read_bytes()
        mine, other = state(tmp_path / name), state(tmp_path / "plain")
        assert any(not torch.equal(mine[key], leaf) for key, leaf in other.items() if key.startswith("server."))


# what is learned ------------------------------------------------------------------------------------------------


def test_pac_pfl_learns_under_a_generous_budget_and_not_under_a_tiny_one(tmp_path: Path) -> None:
    start = federation_state.start(*_parts(), tiny().plan).server.particles
    run(tmp_path / "plain", "model.linear=none")
    moved = {"plain": state(tmp_path / "plain")["server.particles"] - start}
    for name, budget in (("generous", 1e8), ("tiny", 1e-3)):
        run(tmp_path / name, f"privacy.epsilon={budget}", "privacy.clip=1000", "model.linear=none")
        moved[name] = state(tmp_path / name)["server.particles"] - start

    def like(name: str) -> float:
        return float(torch.cosine_similarity(moved[name].flatten(), moved["plain"].flatten(), 0))

    assert like("generous") > 0.99 and abs(like("tiny")) < 0.5


def _parts() -> tuple[Any, Any]:
    method, groups = study.prepare(tiny("model.linear=none"), load(tiny()))
    return method, groups["existing"].train


@pytest.mark.law
@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi", "fedavg", "pac-pfl-bnn"])
def test_every_kind_of_method_runs_privately(tmp_path: Path, name: str) -> None:
    own = {"cfedbayes": ["method.start=random"], "fedavg": ["method.weighting=uniform"]}.get(name, [])
    result = run(tmp_path, *quick(name), *own, ON, "federation.rounds=2", "federation.cohort=none")
    assert said(result)["releases"] == 2 and all(math.isfinite(v) for v in result.column("new", "rsmse"))


# what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["federation.min_clients=2"], "min_clients = 2 would tell"),
        (["federation.on_bad_client=stop"], "on_bad_client = 'stop' would tell"),
        (["privacy.delta=0.25"], r"delta must be below 1 / N = 0.25, got 0.25"),
        (["privacy.delta=0"], "Gaussian noise has no guarantee with delta = 0"),
        (["privacy.cohort=poisson"], r"cohort = 'poisson' needs the size of a cohort \(give federation.cohort\)"),
        (["federation.cohort=2", "privacy.cohort=poisson", "privacy.neighbours=replace"], "poisson cohorts have an"),
        ([*quick("pfedbayes"), "federation.cohort=2", "privacy.cohort=fixed"], "remember who was drawn"),
        (["privacy.mechanism=dp-ftrl"], "dp-ftrl correlates the noise of rounds in which no client takes part twice"),
        (["privacy.mechanism=dp-ftrl", "federation.cohort=3"], "dp-ftrl correlates the noise"),
        (["privacy.mechanism=dp-ftrl", "federation.cohort=2", "privacy.cohort=poisson"], "dp-ftrl correlates"),
        (["federation.cohort=2", "privacy.cohort=in-order", "privacy.ledger=a.json"], "accounted for in a row"),
        (["privacy.subspace=72"], r"subspace must be from 1 to 71, as a message has 72 numbers, got 72"),
        ([*quick("fedsi"), "method.weighting=uniform", "privacy.subspace=3"], "fedsi sends variances that are no"),
        (["report.certify.scheme=folds", "report.certify.folds=2"], "trains several times"),
        (["method.name=fedavg"], "weighting = 'rows' needs"),
        (["method.name=cfedbayes"], "start = 'uploads' groups"),
        (["method.name=fedsi"], "method.alpha would be chosen by the clients' rows"),
        (["method.name=pac-pfl-bnn"], "method.posterior would be chosen by the clients' rows"),
        (["method.name=local"], "its clients send nothing"),
        (["method.name=ridge"], "its clients send nothing"),
        (["method.name=pooled-ridge"], "its clients send their rows"),
    ],
    ids=str,
)
def test_what_cannot_be_private_is_refused_in_a_line_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sets: list[str], text: str
) -> None:
    with pytest.raises(PrivacyError, match=text):
        run(tmp_path / "run", ON, *sets)
    path = write_study(tmp_path)
    given = [word for one in (ON, *sets) for word in ("--set", one)]
    assert cli.main(["run", str(path), *given, "--out", str(tmp_path / "command")]) == 1
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1 and printed.out == "" and "(" in printed.err
    assert not (tmp_path / "command").exists()


def test_a_private_run_needs_a_folder_for_its_ledger() -> None:
    with pytest.raises(PrivacyError, match=r"has no folder for it \(give the run a folder: --out DIR\)"):
        study.run(tiny(ON))
    with pytest.raises(PrivacyError, match="has no folder"):
        privacy.open_private(tiny(ON), *_parts()[:1], None, _parts()[1], None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"epsilon": 0.0}, r"epsilon must be from 1e-08 to 1e\+08, got 0"),
        ({"epsilon": math.inf}, r"epsilon must be from 1e-08 to 1e\+08, got inf"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"multiplier": 0.0}, "multiplier must be positive"),
        ({"delta": 1.0}, "delta must be at least 0 and below 1, got 1"),
        ({"mechanism": "paper_algorithm_3", "multiplier": 2.0}, "multiplier is not for paper_algorithm_3"),
        ({"candidates": 9}, r"candidates is not for gaussian.*\(mechanism = 'exponential', or leave candidates out\)"),
        ({"mechanism": "knorm", "candidate_step": 0.3}, "candidate_step is not for knorm, which chooses"),
        ({"clip_quantile": 1.0}, "clip_quantile must be strictly between 0 and 1, got 1"),
        ({"clip_rate": 0.3}, r"clip_rate is of a clip that follows a quantile.*\(give clip_quantile, or leave"),
        ({"clip_noise": 0.3}, "clip_noise is of a clip that follows a quantile"),
        ({"subspace": 0}, "subspace must be at least 1, got 0"),
        ({"directions": "mine.py:basis"}, r"directions is of a subspace, and none is given.*\(give subspace, or leave"),
        ({"subspace": 3, "mechanism": "exponential"}, "subspace is not for exponential, which chooses"),
        ({"subspace": 3, "mechanism": "paper_algorithm_3"}, "subspace is not for paper_algorithm_3, which has"),
        ({"clip_quantile": 0.5, "mechanism": "exponential"}, "clip_quantile is not for exponential, which chooses"),
        ({"clip_quantile": 0.5, "mechanism": "dp-ftrl"}, "clip_quantile is not for dp-ftrl, which correlates"),
        ({"clip_quantile": 0.5, "mechanism": "paper_algorithm_3"}, "clip_quantile is not for paper_algorithm_3"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(PrivacyError, match=text):
        PrivacyPart(**values)


def test_a_table_with_the_candidates_that_a_run_writes_is_read_again_under_any_mechanism() -> None:
    assert PrivacyPart(candidates=400, candidate_step=0.6) == PrivacyPart()
    PrivacyPart(mechanism="exponential", candidates=9, candidate_step=0.3)


def test_choices_by_training_rows_are_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    text = r"method.\w+ would be chosen by the clients' rows.*\(set method.\w+ to a value"
    with pytest.raises(PrivacyError, match=text):
        tune.tune(path, "pac-pfl", 2, 2, sets=[ON])
    assert cli.main(["tune", str(path), "--set", ON, "--out", str(tmp_path / "tuned.toml"), "--quiet"]) == 1
    open_study = Study.from_table({"method": {"name": "fedsi"}, "privacy": {"epsilon": 1.0}})
    with pytest.raises(PacBayesFLError, match="chosen by the clients' rows"):
        privacy.check(open_study, tmp_path)
    assert choice_file.recall(open_study, tmp_path) == (open_study, {})


def test_a_budget_cannot_be_raised_afterwards(finished: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", ON)
    before = releases(tmp_path / "run")
    for other in ("privacy.epsilon=20", "privacy.clip=2", "privacy.mechanism=laplace", "privacy.epsilon=none"):
        with pytest.raises(CheckpointError, match=other.split("=")[0].replace(".", r"\.")):
            run(tmp_path / "run", ON, other, resume=True)
    assert releases(tmp_path / "run") == before


# what is left of a budget ---------------------------------------------------------------------------------------


def test_a_budget_that_is_spent_ends_the_run_with_what_it_has_bought(tmp_path: Path) -> None:
    sets = ("privacy.epsilon=0.5", "privacy.mechanism=laplace", "privacy.multiplier=10")  # a tenth of epsilon a round
    with pytest.warns(UserWarning, match="the run ends before its last round: .*5 releases have spent epsilon = 0.5"):
        result = run(tmp_path, *sets)
    about = said(result)
    assert [record.round for record in result.rounds] == [1, 2, 3, 4, 5]
    assert (about["releases"], about["rounds"], releases(tmp_path)) == (5, 5, 5)
    assert about["epsilon"] == pytest.approx(0.5) and f"before the {ROUNDS} rounds" in about["statement"]
    saved = checkpoint.load(tmp_path)
    assert saved is not None and (saved.round, saved.meta["released"]) == (5, 5)
    kept = state(tmp_path)
    with pytest.warns(UserWarning, match="the run ends before its last round"):
        again = run(tmp_path, *sets, resume=True)
    assert said(again) == about and releases(tmp_path) == 5
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state(tmp_path).items())
    assert again.summary() == result.summary()


def test_a_budget_that_buys_nothing_leaves_the_start(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="0 releases have spent"):
        result = run(tmp_path, "privacy.epsilon=0.05", "privacy.mechanism=laplace", "privacy.multiplier=10")
    assert result.rounds == () and (said(result)["releases"], said(result)["epsilon"]) == (0, 0.0)


def test_more_rounds_do_not_make_a_larger_budget(tmp_path: Path) -> None:
    run(tmp_path, ON)
    with pytest.warns(UserWarning, match="the run ends before its last round"):
        about = said(run(tmp_path, ON, "federation.rounds=20", resume=True))
    assert about["epsilon"] <= 10 and releases(tmp_path) < 20


def test_clients_that_leave_do_not_make_a_budget_larger(tmp_path: Path) -> None:
    """By default delta is 0.1 / N: 0.0125 of eight clients, 0.033 of three, and a budget by the latter is larger."""
    one = tiny(ON, "data.options.clients=8")
    method, groups = study.prepare(one, load(one))
    state, clients = federation_state.start(method, groups["existing"].train, one.plan), groups["existing"].train

    def sit(state: Any, clients: Any, rounds: int) -> tuple[Any, Any]:
        aggregator = privacy.open_private(one, method, state, clients, tmp_path, len(Ledger(tmp_path, ANYTHING)))
        assert aggregator is not None
        plan = replace(one.plan, rounds=rounds)
        with privacy.stop_when_spent():
            for _, after in engine.rounds(method, clients, plan, state, aggregator):
                state = after
        return state, aggregator

    state, first = sit(state, clients, 5)
    few = torch.arange(3)
    state = state._replace(kept=tensors.select(state.clients, few))
    with pytest.warns(UserWarning, match=r"would exceed \(epsilon, delta\) = \(10, 0.0125\); 12 releases"):
        _, second = sit(state, clients.select(few), 40)
    assert second.cohorts.clients == 3 and second.mechanism == first.mechanism
    assert len(second.ledger) == ROUNDS == first.ledger.room(first.charge) + 5
    about = privacy.labels(one, second, ROUNDS)["privacy"]
    assert about["delta"] == 0.0125 and about["epsilon"] == epsilon(second.ledger.charges, 0.0125) <= 10
    assert "on the sum of 8 clients and 3 clients" in about["statement"]


def test_a_statement_names_all_noise_that_was_used(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study.run(tiny(ON), tmp_path, on_round=stop_at(5))
    with pytest.warns(UserWarning, match="the run ends before its last round"):
        about = said(run(tmp_path, ON, "federation.rounds=20", resume=True))
    used = list(dict.fromkeys(charge.multiplier for charge in Ledger(tmp_path, ANYTHING).charges))
    assert len(used) == 2 and used[0] < used[1] and about["multiplier"] == used[0]
    assert (
        f"gaussian noise of {used[0]:.4g} and {used[1]:.4g} times the clip 1 on the sum of 4 clients"
        in about["statement"]
    )


# crashes --------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """What nothing catches."""


def stages() -> dict[str, tuple[Any, str]]:
    return {
        "before the noise": (mechanisms, "noise"),
        "before the payment": (ledger, "put"),
        "between release and count": (manifest, "write_atomic"),
        "before the server's step": (_parts()[0].__class__, "server"),
        "before the record": (results_rounds, "append_round"),
        "before the checkpoint": (checkpoint, "save"),
    }


@pytest.mark.law
@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("at", [1, 4])
def test_a_crash_at_any_stage_costs_nothing_and_loses_nothing(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, at: int
) -> None:
    simulated, sets = undisturbed
    home, name = stages()[stage]
    real, calls = getattr(home, name), [0]

    def crashing(*arguments: Any, **named: Any) -> Any:
        calls[0] += name != "write_atomic" or arguments[0].name == NAME
        if calls[0] == at:
            raise Crash
        return real(*arguments, **named)

    monkeypatch.setattr(home, name, crashing)
    with pytest.raises(Crash):
        run(tmp_path / "run", *sets)
    monkeypatch.setattr(home, name, real)
    paid = at - (stage in ("before the noise", "before the payment"))
    assert releases(tmp_path / "run") == paid
    saved = checkpoint.load(tmp_path / "run")
    assert (0 if saved is None else saved.meta["released"]) == at - 1
    sources, source = list[int](), mechanisms.source

    def watched(seed: int | None, serial: int, *charge: Any) -> Any:
        sources.append(serial)
        return source(seed, serial, *charge)

    monkeypatch.setattr(mechanisms, "source", watched)
    run(tmp_path / "run", *sets, resume=True)
    assert sources == [*range(paid, FEW)], "what was paid for is not drawn again"
    assert_same_results(tmp_path / "run", simulated)
    for file in (NAME, "rounds.jsonl"):
        assert (tmp_path / "run" / file).read_bytes() == (simulated / file).read_bytes()


@pytest.mark.law
def test_a_round_that_is_lost_with_its_checkpoint_is_taken_from_its_release(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The newest round is damaged after the run: the one before it goes on with the release that is kept."""
    simulated, sets = undisturbed
    run(tmp_path, *sets)
    (tmp_path / "checkpoints" / f"round_{FEW:06d}" / "state.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=f"using round {FEW - 1}"):
        run(tmp_path, *sets, resume=True)
    assert releases(tmp_path) == FEW
    assert_same_state(tmp_path, simulated)
    assert (tmp_path / "clients.csv").read_bytes() == (simulated / "clients.csv").read_bytes()


def test_a_round_whose_release_is_not_kept_is_paid_for_again(tmp_path: Path) -> None:
    """The release of the first round is that of the newest no more: what comes after its checkpoint is repeated."""
    with pytest.raises(KeyboardInterrupt):
        study.run(tiny(SEEDED, "privacy.multiplier=5"), tmp_path / "run", on_round=stop_at(1))
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "early")
    run(tmp_path / "run", SEEDED, "privacy.multiplier=5", resume=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(tmp_path / "early", tmp_path / "run" / "checkpoints")
    about = said(run(tmp_path / "run", SEEDED, "privacy.multiplier=5", resume=True))
    assert about["releases"] == releases(tmp_path / "run") == 2 * ROUNDS - 1


def stop_at(round: int) -> Callable[[Any], None]:
    return lambda record: os.kill(os.getpid(), signal.SIGTERM) if record.round == round else None


@pytest.mark.law
def test_a_run_that_is_stopped_in_order_goes_on_to_the_same_bits_for_the_same_price(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    simulated, sets = undisturbed
    with pytest.raises(KeyboardInterrupt):
        study.run(tiny(*sets), tmp_path, on_round=stop_at(5))
    assert releases(tmp_path) == 5
    run(tmp_path, *sets, resume=True)
    assert_same_results(tmp_path, simulated)
    assert (tmp_path / NAME).read_bytes() == (simulated / NAME).read_bytes()


def test_the_same_seed_gives_the_same_simulation_and_the_systems_randomness_does_not(
    simulated: Path, tmp_path: Path
) -> None:
    run(tmp_path / "again", SEEDED)
    assert_same_results(tmp_path / "again", simulated)
    for name in ("one", "other"):
        run(tmp_path / name, ON, "federation.rounds=2")
    with pytest.raises(AssertionError, match=r"server\."):
        assert_same_state(tmp_path / "one", tmp_path / "other")


def test_a_ledger_that_was_lost_or_damaged_ends_the_run(simulated: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study.run(tiny(SEEDED), tmp_path, on_round=stop_at(5))
    path = tmp_path / NAME
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"count": 5', b'"count": 4'))
    with pytest.raises(PrivacyError, match="is damaged"):
        run(tmp_path, SEEDED, resume=True)
    path.unlink()
    with pytest.raises(PrivacyError, match="knows of 0 releases, the run of 5"):
        run(tmp_path, SEEDED, resume=True)
    path.write_bytes(good)
    run(tmp_path, SEEDED, resume=True)
    assert_same_results(tmp_path, simulated)


# files ----------------------------------------------------------------------------------------------------------


def test_the_table_survives_toml_and_a_study_without_it_has_its_defaults() -> None:
    one = tiny(ON, "privacy.mechanism=laplace", "privacy.cohort=all", "privacy.delta=0.01")
    assert Study.from_table(one.table()) == one and one.privacy.epsilon == 10.0
    assert Study.from_table({key: part for key, part in tiny().table().items() if key != "privacy"}) == tiny()
    with pytest.raises(StudyError, match=r"unknown key 'epsilom'.*did you mean 'epsilon'"):
        tiny("privacy.epsilom=1")


def test_labels_are_json(finished: Path) -> None:
    assert json.loads((finished / "labels.json").read_text("utf-8"))["privacy"] == said(results.load(finished))


def test_spent_and_saved_are_empty_where_nothing_is_private() -> None:
    assert privacy.epsilon_spent(None) == privacy.labels(tiny(), None, 3) == {}


# several runs on the same rows -----------------------------------------------------------------------------------


def test_runs_on_copies_of_a_table_share_a_budget_and_one_too_many_is_refused_before_anything(tmp_path: Path) -> None:
    shared, short = tmp_path / "all.json", "federation.rounds=3"
    options = (f"privacy.ledger={shared}", short, "privacy.epsilon=4", "privacy.delta=0.02")
    first, copy = write_csv(tmp_path / "a.csv", rows()), write_csv(tmp_path / "copy of a.csv", rows())
    one = study.run(on_csv(first, *options, "privacy.total=7"), tmp_path / "one")
    alone = said(one)["ledger"]
    assert alone == {
        "epsilon": said(one)["epsilon"],
        "delta": 0.02,
        "total": 7.0,
        "other_runs": 0,
        "client": alone["client"],
    }
    two = said(study.run(on_csv(copy, *options, "seed=8", "data.features=['wind']"), tmp_path / "two"))
    charges = [*Ledger(tmp_path / "one", ANYTHING).charges, *Ledger(tmp_path / "two", ANYTHING).charges]
    assert two["ledger"]["epsilon"] == epsilon(charges, 0.02) > 4 and two["ledger"]["other_runs"] == 1
    assert "with 1 other run of the shared ledger on the same rows epsilon = " in two["statement"]
    before = shared.read_bytes()
    with pytest.raises(PrivacyError, match="2 others have spent"):
        study.run(on_csv(first, *options), tmp_path / "three")
    assert shared.read_bytes() == before and not (tmp_path / "three").exists()
    other = study.run(on_csv(write_csv(tmp_path / "b.csv", rows(1)), *options), tmp_path / "four")
    assert said(other)["ledger"]["other_runs"] == 0


def test_a_run_that_was_killed_goes_on_with_what_it_reserved(tmp_path: Path) -> None:
    shared = tmp_path / "all.json"
    options = (ON, f"privacy.ledger={shared}", "privacy.total=10", "privacy.delta=0.02")
    folder = tmp_path / "run"

    def stop(record: results_rounds.RoundRecord) -> None:
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(tiny(*options), folder, on_round=stop)
    with pytest.raises(PrivacyError, match="one other has spent or reserved"):
        run(tmp_path / "second", *options)
    result = run(folder, *options, resume=True)
    assert said(result)["ledger"]["epsilon"] == said(result)["epsilon"] <= 10 and releases(folder) == ROUNDS
    assert len(read(shared).runs) == 1
    shared.unlink()
    with pytest.raises(PrivacyError, match="is missing"):
        run(folder, *options, resume=True)


def test_a_copy_made_while_a_run_goes_on_adds_to_what_the_run_has_spent(tmp_path: Path) -> None:
    shared, whole, copy = tmp_path / "all.json", tmp_path / "run", tmp_path / "copy"
    options = (ON, f"privacy.ledger={shared}", "privacy.total=100", "privacy.delta=0.02", "federation.rounds=6")

    def snapshot(record: results_rounds.RoundRecord) -> None:
        if record.round == 3:
            shutil.copytree(whole, copy)

    study.run(tiny(*options), whole, on_round=snapshot)
    assert releases(copy) == 3
    result = said(run(copy, *options, resume=True))["ledger"]
    charges = [*Ledger(whole, ANYTHING).charges, *Ledger(copy, ANYTHING).charges]
    assert result["other_runs"] == 1 and result["epsilon"] == epsilon(charges, 0.02)


def test_a_kill_behind_the_release_of_moments_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows do not take its place; it goes on with the moments that it has paid for."""
    options = (ON, f"privacy.ledger={tmp_path / 'all.json'}", "privacy.total=100", "data.scale=pooled")
    options += ("data.ranges={ lag_1 = [0, 300], wind = [0, 300], y = [0, 3000] }", "federation.rounds=2")
    one = on_csv(write_csv(tmp_path / "a.csv", rows(0)), *options)
    folder = tmp_path / "run"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pacbayes_fl.study.storage.run_folder.RunFolder.open", killed)
        study.run(one, folder)
    assert releases(folder) == 1 and not (folder / "scaling.json").exists()
    paid = (folder / "release_scaling.safetensors").read_bytes()
    write_csv(tmp_path / "a.csv", rows(1))
    with pytest.raises(StudyError, match="holds a run"):
        study.run(one, folder)
    with pytest.raises(DataError, match="its rows are not those that the run was started with"):
        study.run(one, folder, resume=True)
    write_csv(tmp_path / "a.csv", rows(0))
    result = study.run(one, folder, resume=True)
    assert releases(folder) == 3 and said(result)["ledger"]["other_runs"] == 0
    assert (folder / "release_scaling.safetensors").read_bytes() == paid


def test_a_ledger_that_runs_beside_this_one_paid_into_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    shared, other = tmp_path / "ledgers" / "all.json", tmp_path / "ledgers" / "other.json"
    options = (ON, "federation.rounds=1", "privacy.total=100")
    run(tmp_path / "one", *options, f"privacy.ledger={shared}")
    run(tmp_path / "clear", "privacy.epsilon=none", f"privacy.ledger={shared}")  # which pays nothing
    kept = shared.read_bytes()
    shared.unlink()
    (tmp_path / "link").symlink_to(tmp_path / "ledgers")
    for path in (shared, tmp_path / "link" / "all.json"):
        with pytest.raises(PrivacyError, match=r"is not there, and run 'one' beside this one took part in it: .* copy"):
            run(tmp_path / "two", *options, f"privacy.ledger={path}")
    assert not shared.exists() and not (tmp_path / "two").exists()
    run(tmp_path / "third", *options, f"privacy.ledger={other}")
    shared.write_bytes(kept)
    assert said(run(tmp_path / "two", *options, f"privacy.ledger={shared}"))["ledger"]["other_runs"] == 1
    shared.unlink()
    with pytest.raises(PrivacyError, match=r"and run 'one' and 1 more beside this one took part"):
        run(tmp_path / "four", *options, f"privacy.ledger={shared}")


def test_runs_that_were_moved_with_their_ledger_go_on_and_are_known_to_have_paid(tmp_path: Path) -> None:
    def options(folder: str) -> tuple[str, ...]:
        return ON, "privacy.total=100", f"privacy.ledger={tmp_path / folder / 'all.json'}"

    (tmp_path / "before").mkdir()
    run(tmp_path / "before" / "one", *options("before"), "federation.rounds=1")
    (tmp_path / "before").rename(tmp_path / "after")
    folder = tmp_path / "after"
    result = run(folder / "one", *options("after"), "federation.rounds=2", resume=True)
    assert said(result)["ledger"]["other_runs"] == 0
    (folder / "all.json").unlink()
    (tmp_path / "after").rename(tmp_path / "last")
    with pytest.raises(PrivacyError, match="run 'one' beside this one took part in it"):
        run(tmp_path / "last" / "two", *options("last"), "federation.rounds=1")


def test_a_ledger_that_is_an_older_copy_is_found_out_by_the_runs_beside(tmp_path: Path) -> None:
    shared = tmp_path / "all.json"
    options = (ON, "privacy.total=100", f"privacy.ledger={shared}")
    run(tmp_path / "one", *options, "federation.rounds=1")
    kept = shared.read_bytes()
    run(tmp_path / "two", *options, "federation.rounds=1")
    shared.write_bytes(kept)
    with pytest.raises(PrivacyError, match=r"does not know of run 'two' beside this one, .*: it is an older copy"):
        run(tmp_path / "three", *options, "federation.rounds=1")
    assert shared.read_bytes() == kept and not (tmp_path / "three").exists()
    run(tmp_path / "two", *options, "federation.rounds=2", resume=True)  # which says what it has spent
    shutil.copytree(tmp_path / "two", tmp_path / "copy")
    run(tmp_path / "copy", *options, "federation.rounds=3", resume=True)  # in the place of the first
    assert said(run(tmp_path / "three", *options, "federation.rounds=1"))["ledger"]["other_runs"] == 2

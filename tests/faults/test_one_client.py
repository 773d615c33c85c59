"""One client, or one learning rate, that would ruin a federation: rounds are undone, and the cause is named."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import cli, tensors
from pacbayes_fl.cli.progress import progress
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation import checkpoint, client_states, engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search import tune
from tests.laws.cases import (
    FEDERATED,
    Case,
    assert_close,
    bits,
    federation,
    from_recipe,
    identified,
    numbers,
    rows_for,
    scene,
)
from tests.tiny import NUMBERS, quick, state, tiny, write_study

UPLOADS = ("score", "w", "moments", "theta", "pair", "sent", "value")
"""Names under which methods send what moves the server."""


@dataclass(frozen=True)
class Poisoned:
    """A method of which one client sends a multiple of what it should, in some rounds.

    Args:
        inner: the method.
        client_id: of the client.
        factor: of everything that moves the server.
        rounds: in which it does so; in all when None.
    """

    inner: Any
    client_id: int
    factor: float
    rounds: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def client(self, message: Any, state: Any, batch: ClientBatch, noise: Any) -> tuple[Any, Any]:
        update, after = self.inner.client(message, state, batch, noise)
        if self.client_id not in batch.ids or (self.rounds is not None and noise.round not in self.rounds):
            return update, after
        k = batch.ids.index(self.client_id)

        def spoilt(leaf: torch.Tensor) -> torch.Tensor:
            leaf = leaf.clone()
            leaf[k] *= self.factor
            return leaf

        fields = {name: getattr(update, name) for name in UPLOADS if name in update._fields}
        assert fields, f"{type(update).__name__} moves the server by a field that is not among {UPLOADS}"
        return update._replace(**{name: tensors.tree_map(spoilt, part) for name, part in fields.items()}), after


@contextmanager
def silently() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def ended(method: Any, batch: ClientBatch, plan: FederationPlan) -> tuple[list[RoundRecord], NumericalError | None]:
    """Play to the end, or to the error."""
    records = []
    with silently():
        try:
            for record, _ in engine.rounds(method, batch, plan):
                records.append(record)
        except NumericalError as error:
            return records, error
    return records, None


# a rate that is too large -----------------------------------------------------------------------------------------


RUINOUS = [
    ["method.optimiser=ascent", "method.rate=1"],
    ["method.optimiser=ascent", "method.rate=1e12"],
    ["method.rate=1e12"],
    ["method.name=fedavg", "method.rate=1e3"],
    ["method.name=pfedbayes", "method.rate=1e3"],
    ["method.name=pfedbayes", "method.rate=1e8"],
    [*quick("fedsi"), "method.rate=1e8"],
    ["method.name=local", "method.rate=1e3"],
]


@pytest.mark.law
@pytest.mark.parametrize("sets", RUINOUS, ids=",".join)
def test_a_rate_that_ruins_everything_ends_with_one_line_that_names_it(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = [word for value in sets for word in ("--set", value)]
    assert cli.main(["run", str(write_study(tmp_path)), "--out", str(folder), "--quiet", *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "at an eighth of the learning rates too (lower the learning rates, and start anew)" in line
    assert "poly_0" not in line, "no client is to blame"
    saved, records = checkpoint.load(folder), results_rounds.read_rounds(folder)
    assert saved is not None and saved.round == len(records), "the last good round is on disk"
    assert all(bool(tensor.isfinite().all()) for tensor in saved.tensors.values())
    assert Watch.from_saved(saved.meta["watch"]).halved == (0 if not records else [0, 1, 2, 3][len(undone(records))])


def undone(records: tuple[RoundRecord, ...]) -> list[str]:
    return [why for record in records for why in record.undone]


SLOWED = ("method.name=fedavg", "method.steps=5", "federation.rounds=6", "federation.checkpoint_every=1")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose first round was undone until it held; only to be read."""
    folder = tmp_path_factory.mktemp("slow") / "run"
    with pytest.warns(UserWarning, match=r"round 1 undone: .* nats, from .*; learning rates halved, 1 of at most 3"):
        run.run(tiny(*SLOWED, "method.rate=4"), folder)
    return folder


def test_a_run_that_was_slowed_says_so_in_records_labels_and_progress(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = results_rounds.read_rounds(slow)
    times = len(records[0].undone)
    assert 1 <= times <= 3 and undone(records) == list(records[0].undone)
    assert all("the clients' mean loss has come to" in why for why in records[0].undone)
    assert [record.rates for record in records] == [0.5**times] * 6
    labels = json.loads((slow / "labels.json").read_text("utf-8"))
    assert labels["rates"].startswith(f"{0.5**times:g} of the study's")
    with progress("tiny", 60, quiet=False) as line:
        for record in records:
            line(record)
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("tiny: 1/60 ") and first.endswith(f"undone {times}, rates x {0.5**times:g}")


def test_a_slowed_run_is_that_of_the_slower_study(slow: Path, tmp_path: Path) -> None:
    """Undone bit by bit: nothing of what did not hold is left, and what comes after the rounds is slower too."""
    rate = 4 * 0.5 ** len(results_rounds.read_rounds(slow)[0].undone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.run(tiny(*SLOWED, f"method.rate={rate}"), tmp_path / "slower")
    same(tmp_path / "slower", slow)
    opened = run.open_run(slow).method
    assert opened.local.rate == rate


@dataclass(frozen=True)
class Stumbling(Poisoned):
    """Poisoned in the first call of a round alone, so that it holds when it is played again."""

    calls: list[int] = field(default_factory=list)

    def client(self, message: Any, state: Any, batch: ClientBatch, noise: Any) -> tuple[Any, Any]:
        first = self.rounds is not None and noise.round in self.rounds and noise.round not in self.calls
        if self.client_id not in batch.ids or not first:
            return self.inner.client(message, state, batch, noise)
        self.calls.append(noise.round)
        return super().client(message, state, batch, noise)


@pytest.mark.law
@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "fedsi", "bpfed"])
def test_a_round_is_undone_bit_by_bit_from_the_file_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the states of before are not in memory any more, they come back as they were."""
    method, batch = from_recipe(METHODS[name], 1), federation(1)

    def played() -> tuple[list[int], list[dict[str, Any]]]:
        stumbling: Any = Stumbling(method, batch.ids[1], 1e12, rounds=(2,))
        plan = FederationPlan(rounds=3, chunk=1)
        result = list(engine.rounds(stumbling, batch, plan))
        return [len(record.undone) for record, _ in result], [bits(state.clients) for _, state in result]

    with silently():
        usual = played()
        monkeypatch.setattr(client_states, "AT_HAND", 0)
        assert usual == played() and usual[0] == [0, 1, 0]


def same(one: Path, other: Path) -> None:
    """Check that two runs ended in the same state and predict the same, bit by bit."""
    assert bits(state(one)) == bits(state(other))
    for name in ("clients.csv", "predictions.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def stop_at(round: int) -> Any:
    def stop(record: RoundRecord) -> None:
        if record.round == round:
            raise KeyboardInterrupt

    return stop


def test_a_slowed_run_goes_on_bit_by_bit_after_it_was_stopped(slow: Path, tmp_path: Path) -> None:
    folder, one = tmp_path / "run", tiny(*SLOWED, "method.rate=4")
    with silently():
        for round in (1, 2, 5):  # the first before anything is saved
            with pytest.raises(KeyboardInterrupt):
                run.run(one, folder, resume=round > 1, on_round=stop_at(round))
        run.run(one, folder, resume=True)
    same(folder, slow)
    assert [record.rates for record in results_rounds.read_rounds(folder)] == [
        record.rates for record in results_rounds.read_rounds(slow)
    ]


@pytest.mark.law
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("rate", [1e2, 1e5, 1e12])
def test_no_rounds_of_the_table_end_wildly_without_a_word(name: str, rate: float) -> None:
    """Targets are of the order of 1: what is a thousand times that was not learned from them."""
    method = from_recipe(METHODS[name], 1, {"rate": rate, "prior_rate": rate, "finetune": 0})
    if isinstance(method, LocalMethod):
        return  # whose rounds do nothing
    batch, plan = federation(1), FederationPlan(rounds=4, seed=1)
    try:
        with silently():
            last = engine.run_rounds(method, batch, plan)
    except NumericalError as error:
        assert error.client is None and "lower the learning rates" in str(error)
        return
    for index, posterior in personalisation.personalise(federation_state.at_rates(method, last), last, batch, plan):
        mean = posterior.predict(batch.x[index]).mean[batch.mask[index]]
        assert bool((mean.abs() < 1e3).all()), mean.abs().max()


def test_steps_after_the_rounds_that_diverge_are_said() -> None:
    with pytest.warns(UserWarning, match=r"predictions of .*'poly_0\d'.* are up to .* standard deviations .* away"):
        run.run(tiny("method.name=vanilla-gp", "method.rate=1e5"))


# one client -------------------------------------------------------------------------------------------------------


MOVED = [
    name
    for name, recipe in METHODS.items()
    if type(from_recipe(recipe, 1)).client_deltas is not Method.client_deltas  # type: ignore[comparison-overlap]
]


@pytest.mark.law
@pytest.mark.parametrize("rounds", [None, (2,)], ids=["always", "once"])
@pytest.mark.parametrize("name", MOVED)
def test_who_ruins_a_federation_is_named_or_stands_in_the_records(name: str, rounds: tuple[int, ...] | None) -> None:
    batch, plan = rows_for(name), FederationPlan(rounds=4, seed=1)
    method = from_recipe(METHODS[name], 1)
    records, error = ended(Poisoned(method, batch.ids[3], 1e6, rounds), batch, plan)
    if error is not None:
        assert error.client == "client_03" and "federation.aggregate = 'clipped'" in str(error)
        return
    for record in records:
        if rounds is None or record.round in rounds:
            assert record.steps is not None and record.steps.whose == "client_03"
            assert record.steps.largest > 1e4 * record.steps.median


def test_an_honest_client_that_fails_because_of_another_is_not_to_blame() -> None:
    """In the round after a poison that nobody noticed, all clients fail but the one that sent it."""
    batch, plan = federation(1), FederationPlan(rounds=5, seed=1, diverges_at=None)
    method = Poisoned(from_recipe(METHODS["pfedbayes"], 1), batch.ids[3], 1e200, (2,))
    records, error = ended(method, batch, plan)
    assert [record.round for record in records] == [1, 2], "the poison is finite"
    assert error is not None and error.client == "client_03" and error.round == 3
    assert "0 of 5 clients gave a finite update" in str(error) and "its step in round 2 was" in str(error)


def test_a_negative_client_is_named_when_it_has_ruined_everything() -> None:
    batch, plan = federation(1), FederationPlan(rounds=60, seed=1)
    method = Poisoned(from_recipe(METHODS["fedavg"], 1), batch.ids[1], -1e3)
    _, error = ended(method, batch, plan)
    assert error is not None and error.client == "client_01"


def test_one_that_still_trains_among_others_at_rest_ends_no_run() -> None:
    """Its step is hundreds of times the others', and shorter than all were in the first round."""
    batch, plan, method = federation(1), FederationPlan(rounds=8, seed=1), from_recipe(METHODS["pac-pfl"], 1)
    for client in batch.ids:
        method = Poisoned(method, client, 0.2 if client == batch.ids[3] else 1e-3, tuple(range(2, 36)))
    records, error = ended(method, batch, plan)
    assert error is None and [record.undone for record in records] == [()] * 8
    assert ended(method, batch, replace(plan, rounds=35))[1] is not None, "not for ever"
    last = records[-1].steps
    assert last is not None and last.whose == "client_03" and last.largest > 100 * last.median


def test_clients_that_fail_together_are_all_named() -> None:
    batch = federation(1)
    x = batch.x.clone()
    x[[1, 4], 0] = torch.nan
    hurt = replace(batch, x=x)
    with pytest.raises(
        ClientError, match=r"round 1: 3 of 5 .* 4 are needed; not so 'client_01', 'client_04'"
    ) as caught:
        engine.run_rounds(from_recipe(METHODS["pac-pfl"], 1), hurt, FederationPlan(rounds=1, min_clients=4))
    assert caught.value.client is None
    with pytest.raises(NumericalError, match="cannot count came from 'client_01', 'client_04'") as stopped:
        engine.run_rounds(from_recipe(METHODS["pac-pfl"], 1), hurt, FederationPlan(rounds=1, on_bad_client="stop"))
    assert stopped.value.client is None


def test_three_failures_in_a_row_are_counted_over_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PacPFL.client

    def failing(self: PacPFL, message: Any, state: Any, rows: ClientBatch, noise: Any) -> Any:
        update, after = original(self, message, state, rows, noise)
        bad = torch.tensor([name == "poly_02" for name in rows.names])
        return update._replace(score=torch.where(bad.view(-1, 1, 1), torch.nan, update.score)), after

    monkeypatch.setattr(PacPFL, "client", failing)
    one = tiny("federation.checkpoint_every=1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            run.run(one, tmp_path / "run", on_round=stop_at(2))
    with pytest.warns(UserWarning, match=r"client 'poly_02' was dropped 3 times in a row \(round 3\)"):
        run.run(one, tmp_path / "run", resume=True)


# a GPU whose memory is exhausted ------------------------------------------------------------------------------------


def exhausted(method: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of the method with more clients fail as CUDA does, half-way through."""
    kind = type(method)
    for name in ("client", "personalise"):
        real = getattr(kind, name)

        def failing(self: Any, message: Any, kept: Any, batch: ClientBatch, noise: Any, real: Any = real) -> Any:
            result = real(self, message, kept, batch, noise)
            if batch.clients > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return result

        monkeypatch.setattr(kind, name, failing)


@pytest.mark.law
@pytest.mark.parametrize("case", [case for case in FEDERATED if case.name in ("toy", *METHODS)], ids=str)
def test_rounds_and_models_are_the_same_from_calls_that_fit_into_memory(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding in double precision: a client's draws are its own, and sums are added in another order."""
    d = case.dimensions[0]
    s = scene(case, d)

    def played() -> tuple[Any, Any, dict[int, Any]]:
        begun = federation_state.FederationState(s.server, s.clients, 2)
        ((_, state),) = engine.rounds(s.method, s.batch, replace(s.plan, rounds=3), begun)
        models = {}
        for index, result in personalisation.personalise(s.method, state, s.batch, s.plan, predicted):
            models |= {k: tensors.tree_map(lambda leaf, at=at: leaf[at], result) for at, k in enumerate(index.tolist())}
        return identified(s.method, state.server), state.clients, models

    def predicted(index: torch.Tensor, posterior: Any) -> Any:
        return numbers(posterior.predict(s.batch.x[index]))

    server, clients, models = played()
    exhausted(s.method, 2, monkeypatch)
    with pytest.warns(UserWarning, match="GPU memory exhausted by"):
        fitting = played()
    assert_close(fitting[0], server, 1e-10)
    assert_close(fitting[1], clients, 1e-10)
    for k, one in models.items():
        assert_close(fitting[2][k], one, 1e-10)


@pytest.mark.parametrize("name", ["pac-pfl", "fedavg"])
def test_a_whole_run_is_the_same_where_memory_is_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny(f"method.name={name}", "federation.rounds=3")
    whole = run.run(one)
    exhausted(prepare(one, load(one))[0], 1, monkeypatch)
    with pytest.warns(UserWarning, match="GPU memory exhausted by 4 clients in one call: from here on 2 at a time"):
        short = run.run(one)
    for mine, theirs in zip(short.clients, whole.clients, strict=True):
        assert mine.metrics == pytest.approx(dict(theirs.metrics), rel=1e-5 if name == "fedavg" else 1e-9, nan_ok=True)


def test_a_prediction_that_needs_the_memory_is_made_of_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny("federation.rounds=1")
    whole, real = run.run(one), GPPosterior.predict

    def failing(self: Any, x: torch.Tensor) -> Any:
        if len(x) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, x)

    monkeypatch.setattr(GPPosterior, "predict", failing)
    with pytest.warns(UserWarning, match="GPU memory exhausted by"):
        short = run.run(one)
    for mine, theirs in zip(short.clients, whole.clients, strict=True):
        assert mine.metrics == pytest.approx(dict(theirs.metrics), rel=1e-9, nan_ok=True)


def test_predictions_of_held_out_rows_that_need_the_memory_are_made_of_fewer_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = tiny("federation.rounds=1")
    whole, real = tune.cross_validate(one, load(one), 2), GPPosterior.predict

    def failing(self: Any, x: torch.Tensor) -> Any:
        if len(x) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, x)

    monkeypatch.setattr(GPPosterior, "predict", failing)
    with pytest.warns(UserWarning, match="GPU memory exhausted by"):
        short = tune.cross_validate(one, load(one), 2)
    for mark, scores in whole.items():
        assert short[mark] == pytest.approx(scores, rel=1e-9)


@pytest.mark.parametrize("command", ["predict", "join"])
def test_a_prediction_that_is_too_large_ends_by_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run(tiny("federation.rounds=1"), tmp_path / "run")

    def failing(self: Any, x: torch.Tensor) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(GPPosterior, "predict", failing)
    name = {"predict": "poly_00", "join": "another"}[command]
    (tmp_path / "rows.csv").write_text(f"client,x,y\n{name},0.5,0.1\n{name},0.7,0.2\n", "utf-8")
    who = ["--client", name] if command == "predict" else []
    assert cli.main([command, str(tmp_path / "run"), "--data", str(tmp_path / "rows.csv"), *who]) == 1
    assert f"client {name!r}: the GPU has too little memory for this client alone" in capsys.readouterr().err


def test_a_client_that_is_too_large_alone_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = tiny("federation.rounds=2")
    exhausted(prepare(one, load(one))[0], 0, monkeypatch)
    with silently(), pytest.raises(ClientError, match="the GPU has too little memory for this client alone"):
        run.run(one, tmp_path / "run")
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None and saved.round == 0

"""A release holds what joining clients need, and nothing of a client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from pacbayes_fl import cli, tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import FEDERATED
from pacbayes_fl.errors import CheckpointError, PacBayesFLError, PrivacyError, StudyError
from pacbayes_fl.federation import messages
from pacbayes_fl.methods import METHODS
from pacbayes_fl.noise import Noise
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.results import records as results
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving import release
from pacbayes_fl.study.serving.predict import join
from tests.leaks import leaks
from tests.tiny import learnable, on_csv, quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

QUICK = ("federation.rounds=2", "privacy.epsilon=50", "privacy.multiplier=1", "privacy.delta=0.01")


def own(name: str) -> list[str]:
    """Return assignments under which a method of the table may be private."""
    more = {"cfedbayes": ["method.start=random"], "fedavg": ["method.weighting=uniform"]}
    return [*quick(name), *more.get(name, []), *more["fedavg"] * (name == "fedavg-ft")]


def newcomers(path: Path, seed: int = 5, name: str = "pac-pfl") -> Path:
    """Write rows of clients that the run does not know; the last of each are to be predicted."""
    _, table = learnable(name, rows(seed, sizes=(6, 8), new=()))
    for row in table:
        row["client"], row["group"] = row["client"].replace("existing", "later"), "new"
        if row["split"] == "test":
            row["y"] = float("nan")
    return write_csv(path, [{key: value for key, value in row.items() if key != "group"} for row in table])


def released(study: Study, where: Path) -> Path:
    """Return the folder of a release of another run of a study, whose noise is another where it is private."""
    run.run(study, where / "run")
    release.release(where / "run", where / "out")
    return where / "out"


@pytest.fixture(scope="module")
def table_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "hospital_secret.csv", rows(3))


@pytest.mark.law
@pytest.mark.parametrize("name", [*METHODS])
def test_nothing_of_a_client_is_in_a_release_and_it_is_enough_to_join(tmp_path: Path, name: str) -> None:
    """Every method of the table, private where it can be."""
    task, known = learnable(name, rows(3))
    table = write_csv(tmp_path / "hospital_secret.csv", known)
    one = on_csv(table, *own(name), *task, "federation.rounds=2", "data.scale=client")
    secret = on_csv(table, *own(name), *task, *QUICK, "data.scale=client")
    folder, out = tmp_path / "run", tmp_path / "out"
    try:
        run.run(secret, folder)
    except PrivacyError:
        secret = one
        run.run(secret, folder)
    holds = METHODS[name].method.server_holds
    if not METHODS[name].federated or holds is not None:
        words = "is given the clients' rows" if holds is None else f"the server of {name} holds {holds}, which"
        with pytest.raises(StudyError, match=words):
            release.release(folder, out)
        assert not out.exists()
        return
    trained = run.open_run(folder)
    release.release(folder, out)
    assert leaks(folder, trained.dataset), "the search finds nothing where there is something"
    assert leaks(out, trained.dataset, again=lambda: released(secret, tmp_path / "again")) == []
    path = newcomers(tmp_path / "later.csv", name=name)
    assert_same_predictions(join(trained, path), join(release.open_release(out), path))


def test_a_number_that_stands_in_one_draw_of_the_noise_alone_is_chance(table_of: Path, tmp_path: Path) -> None:
    run.run(on_csv(table_of, "federation.rounds=1"), tmp_path / "run")
    dataset = run.open_run(tmp_path / "run").dataset
    batch = dataset.groups["existing"].train
    number = batch.y[0, batch.mask[0]][0].numpy().astype("<f4").tobytes()
    folders = [tmp_path / name for name in ("one", "other", "without")]
    for folder, content in zip(folders, (number, b"noise" + number, b"noise"), strict=True):
        folder.mkdir()
        (folder / "server.safetensors").write_bytes(content)
    one, other, without = folders
    assert leaks(one, dataset) == leaks(one, dataset, lambda: other) == [("number", "server.safetensors")]
    assert leaks(one, dataset, lambda: without) == [] == leaks(without, dataset)


def assert_same_predictions(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys() and mine
    for name, one in mine.items():
        for field, values in vars(one).items():
            other = getattr(theirs[name], field)
            assert torch.equal(values, other) if isinstance(values, torch.Tensor) else values == other, (name, field)


def test_nobody_who_was_left_out_or_paid_most_is_named(table_of: Path, tmp_path: Path) -> None:
    known = (*QUICK, "data.scale=client", "seed=3")
    table = write_csv(tmp_path / "table.csv", [*rows(3), *({**row, "client": "smith"} for row in rows(3)[:8])])
    shared = (f"privacy.ledger={tmp_path / 'together.json'}", "privacy.total=200", "data.exclude_clients=['smith']")
    in_order = ("federation.cohort=2", "privacy.cohort=in-order")
    for name, data, sets in (("shared", table, shared), ("in_order", table_of, in_order)):
        run.run(on_csv(data, *known, *sets), tmp_path / name)
        release.release(tmp_path / name, tmp_path / f"{name}_out")
    paid = json.loads((tmp_path / "shared" / "labels.json").read_text())["privacy"]["ledger"]["client"]
    files = b"".join(path.read_bytes() for path in (tmp_path / "shared_out").iterdir())
    assert paid and paid.encode() not in files and b"smith" not in files and b"together" not in files
    before, after = (Ledger(tmp_path / name, Budget(50, 0.01)) for name in ("in_order", "in_order_out"))
    assert {charge.cohorts.order for charge in after.charges} == {"1"}
    assert before.charges[0].cohorts.order not in (tmp_path / "in_order_out" / "privacy.json").read_text()
    assert after.statement() == before.statement()
    for name in ("shared_out", "in_order_out"):
        assert join(release.open_release(tmp_path / name), newcomers(tmp_path / "later.csv", name="pac-pfl"))


@pytest.mark.parametrize("source", ["polynomial", "csv", "npz", "images"])
def test_whatever_the_rows_come_from(tmp_path: Path, source: str) -> None:
    private = ("privacy.epsilon=50", "privacy.multiplier=1", "privacy.delta=0.01", "federation.rounds=2")
    if source == "images":
        one = tiny_images(write_root(tmp_path / "root"), *private, "method.weighting=uniform")
    elif source == "polynomial":
        one = tiny(*private)
    else:
        path = write_csv(tmp_path / "mine.csv", rows(4))
        if source == "npz":
            from pacbayes_fl.data import tables

            np.savez(tmp_path / "mine.npz", **tables.to_arrays(tables.read(path)))
            path = tmp_path / "mine.npz"
        one = on_csv(path, *private)
    folder, out = tmp_path / "run", tmp_path / "out"
    run.run(one, folder)
    words = release.release(folder, out)
    assert "the guarantee of the run covers it" in words
    trained = run.open_run(folder)
    assert leaks(out, trained.dataset, again=lambda: released(one, tmp_path / "again")) == []
    everything = b"".join(path.read_bytes() for path in out.iterdir())
    for hidden in (str(tmp_path).encode(), b"mine", b"root", b"split_sha256", b"rsmse", b"accuracy"):
        assert hidden not in everything
    assert {path.name for path in out.iterdir()} >= {"study.toml", "server.safetensors", "labels.json", "privacy.json"}
    again = release.open_release(out)
    assert again.study.method == one.method and again.round == 2
    assert again.schema.features == trained.dataset.features and again.schema.target == trained.dataset.target


def test_images_join_a_release(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    run.run(tiny_images(write_root(tmp_path / "root"), "federation.rounds=2"), folder)
    release.release(folder, out)
    random = np.random.default_rng(0)
    y = np.array([1, 2, 3, -1, -1])
    x = random.integers(0, 255, (5, 1, 6, 6)).astype(np.uint8)
    np.savez(tmp_path / "later.npz", x=x, y=y, client=np.array(["a"] * 5))
    mine = join(run.open_run(folder), tmp_path / "later.npz")
    assert_same_predictions(mine, join(release.open_release(out), tmp_path / "later.npz"))


def test_the_command_releases_and_joins(
    table_of: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, path = tmp_path / "run", tmp_path / "out", newcomers(tmp_path / "later.csv")
    run.run(on_csv(table_of, *QUICK), folder)
    assert cli.main(["release", str(folder), "--out", str(out)]) == 0
    assert "release: made of noisy releases alone" in capsys.readouterr().out
    assert cli.main(["join", str(folder), "--data", str(path), "--quiet"]) == 0
    mine = capsys.readouterr().out
    table_of_run = {each.name for each in out.iterdir()}
    assert cli.main(["join", str(out), "--data", str(path), "--quiet"]) == 0
    assert capsys.readouterr().out == mine and mine.count("\n") > 5
    assert {each.name for each in out.iterdir()} == table_of_run, "joining writes nothing"
    assert json.loads((out / "labels.json").read_text())["privacy"]["releases"] == 2
    for command in (["predict", str(out), "--client", "later_0", "--data", str(path)], ["certify", str(out)]):
        assert cli.main(command) == 1
        assert (
            "is a release of a run, which holds nothing of its clients (join takes a release" in capsys.readouterr().err
        )


def test_a_release_that_is_not_private_says_so(table_of: Path, tmp_path: Path) -> None:
    run.run(on_csv(table_of, "federation.rounds=2"), tmp_path / "run")
    words = release.release(tmp_path / "run", tmp_path / "out")
    assert words.startswith("not private: the server's model was made of all clients' rows")
    assert json.loads((tmp_path / "out" / "labels.json").read_text())["release"] == words
    assert not (tmp_path / "out" / "privacy.json").exists()
    seeded = ("privacy.epsilon_if_noise_were_secret=50", *QUICK[2:], "federation.rounds=2")
    run.run(on_csv(table_of, *seeded), tmp_path / "seeded")
    assert "so that they hide nothing" in release.release(tmp_path / "seeded", tmp_path / "other")


def test_a_node_needs_no_more_than_a_release(table_of: Path, tmp_path: Path) -> None:
    """A remote client answers a training request from the release as it would from the run."""
    run.run(on_csv(table_of, *own("pfedbayes"), *QUICK), tmp_path / "run")
    release.release(tmp_path / "run", tmp_path / "out")
    trained, known = run.open_run(tmp_path / "run"), release.open_release(tmp_path / "out")
    message = messages.flatten(trained.method.broadcast(trained.state.server))
    mine = messages.flatten(known.method.broadcast(known.server))
    assert message.keys() == mine.keys() and all(torch.equal(leaf, mine[name]) for name, leaf in message.items())
    like = trained.groups["existing"].train
    batch = ClientBatch.pad([(like.x[0][:5], like.y[0][:5])], ["node"], dtype=known.dtype)
    answers = []
    for one, sent in ((trained.method, message), (known.method, mine)):
        down = tensors.unleaves(one.broadcast(known.server), sent)
        update, state = one.client(down, one.init_clients(down, batch), batch, Noise(known.study.seed, 3, batch.ids))
        answers.append(
            {**tensors.leaves(update), **{f"kept.{key}": leaf for key, leaf in tensors.leaves(state).items()}}
        )
    assert answers[0].keys() == answers[1].keys() and len(answers[0]) > 8
    assert all(torch.equal(leaf, answers[1][name]) for name, leaf in answers[0].items())


def test_what_no_client_is_sent_stays(tmp_path: Path) -> None:
    """Moments of the server's optimiser are gradients of clients, and no prediction needs them."""
    run.run(tiny("federation.rounds=3"), tmp_path / "run")
    release.release(tmp_path / "run", tmp_path / "out")
    trained = run.open_run(tmp_path / "run")
    flat = safetensors.torch.load((tmp_path / "out" / "server.safetensors").read_bytes())
    state = tensors.leaves(trained.state.server)
    assert torch.equal(flat["particles"], state["particles"])
    moments = [name for name in flat if "adam" in name and flat[name].is_floating_point()]
    assert moments and all((state[name] != 0).any() and (flat[name] == 0).all() for name in moments)


@pytest.mark.parametrize("asked", [*(f"data.scale={kind}" for kind in FEDERATED), "data.client_inputs=summaries"])
def test_moments_of_all_rows_leave_where_they_are_public(table_of: Path, tmp_path: Path, asked: str) -> None:
    run.run(on_csv(table_of, "federation.rounds=1", asked), tmp_path / "run")
    with pytest.raises(
        PrivacyError, match=r"(lag_1, wind|summaries).*nobody has said are public \(--public-scaling says so"
    ):
        release.release(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "said to be public" in release.release(tmp_path / "run", tmp_path / "out", public_scaling=True)
    path, trained = newcomers(tmp_path / "later.csv"), run.open_run(tmp_path / "run")
    assert_same_predictions(join(trained, path), join(release.open_release(tmp_path / "out"), path))
    assert leaks(tmp_path / "out", trained.dataset) == []


def test_a_client_without_rows_cannot_join_where_average_units_are_withheld(table_of: Path, tmp_path: Path) -> None:
    run.run(on_csv(table_of, "federation.rounds=1"), tmp_path / "run")
    release.release(tmp_path / "run", tmp_path / "out")
    asking = [{"client": "a", "lag_1": 1.0, "wind": 2.0, "y": float("nan")}]
    path = write_csv(tmp_path / "ask.csv", asking)
    with pytest.raises(PacBayesFLError, match="no rows with a target, and the average units of others"):
        join(release.open_release(tmp_path / "out"), path)


def test_where_learning_started_leaves_only_with_what_is_public(table_of: Path, tmp_path: Path) -> None:
    """The ridge regression is made of sums of all clients' rows; predictions need the particles alone."""
    run.run(on_csv(table_of, "federation.rounds=1"), tmp_path / "run")
    assert run.open_run(tmp_path / "run").groups["existing"].shared.linear is not None
    for public in (False, True):
        release.release(tmp_path / "run", tmp_path / f"out_{public}", public_scaling=public)
        assert (release.open_release(tmp_path / f"out_{public}").shared.linear is not None) is public


def test_damage_of_any_file_is_named(tmp_path: Path) -> None:
    run.run(tiny(*QUICK), tmp_path / "run")
    release.release(tmp_path / "run", tmp_path / "out")
    for file in sorted((tmp_path / "out").iterdir()):
        good = file.read_bytes()
        for at in (0, len(good) // 2, len(good) - 2):
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(CheckpointError, match=re.escape(file.name)):
                release.open_release(tmp_path / "out")
        file.unlink()
        error = StudyError if file.name == release.SIGN else CheckpointError
        with pytest.raises(error, match=re.escape(file.name)):
            release.open_release(tmp_path / "out")
        file.write_bytes(good)
    assert release.open_release(tmp_path / "out").round == 2


def test_no_run_goes_on_in_a_release(tmp_path: Path) -> None:
    run.run(tiny("federation.rounds=1", "federation.checkpoint_every=1"), tmp_path / "run")
    release.release(tmp_path / "run", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for resume in (False, True):
        with pytest.raises(StudyError, match="out is a release of a run, and no run is kept in it"):
            run.run(tiny("federation.rounds=1", "federation.checkpoint_every=1"), tmp_path / "out", resume)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_release_is_written_into_a_folder_of_its_own(tmp_path: Path) -> None:
    run.run(tiny("federation.rounds=1"), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    for out in (tmp_path / "full", tmp_path / "run", tmp_path / "full" / "letter"):
        with pytest.raises(StudyError, match="is not empty"):
            release.release(tmp_path / "run", out)
    (tmp_path / "empty").mkdir()
    release.release(tmp_path / "run", tmp_path / "empty")
    assert release.is_release(tmp_path / "empty") and not release.is_release(tmp_path / "run")
    with pytest.raises(StudyError, match=r"sub is inside of the run .*, of which nothing else may leave it"):
        release.release(tmp_path / "run", tmp_path / "run" / "sub")
    assert not (tmp_path / "run" / "sub").exists()
    with pytest.raises(StudyError, match=r"empty is a release of a run, .*show and plot take the run"):
        results.load(tmp_path / "empty")
    (tmp_path / "empty" / "released.json").unlink()  # as a kill leaves it
    with pytest.raises(StudyError, match=r"is not empty, .*what is left of one that was stopped can be removed"):
        release.release(tmp_path / "run", tmp_path / "empty")
    with pytest.raises(StudyError, match=r"what is left of a release that was stopped: released.json is missing"):
        run.open_run(tmp_path / "empty")
    with pytest.raises(StudyError, match="there is no folder"):
        release.release(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()

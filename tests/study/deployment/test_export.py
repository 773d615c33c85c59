"""An exported app: what is written, and a federation that its README alone starts, also after the server's death."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from pacbayes_fl.errors import DeployError, StudyError
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.deployment.export import Deployment, export
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from pacbayes_fl.testing.scene import assert_close
from tests.deployed import Owners, commands_in, free, needs_flower, rounds_in, server_of, study_of, until

STUDY = study_of(3)


def test_an_app_holds_what_its_owners_need_and_no_row(tmp_path: Path) -> None:
    export(STUDY, tmp_path / "app", "fl.example.org:9092", 3, {})
    files = {path.relative_to(tmp_path / "app").as_posix() for path in (tmp_path / "app").rglob("*") if path.is_file()}
    relays = {f"relay/{name}.py" for name in ("__init__", "server", "client")}
    flower = {"pyproject.toml", "LICENSE", "study.toml", *relays}
    assert files == {*flower, "README.md", "make_keys.py", "deployment.toml", ".gitignore"}
    there = Deployment.read(tmp_path / "app")
    assert there.address == "fl.example.org:9092" and sum(map(len, there.nodes.values())) == 24
    assert Study.from_toml(str(tmp_path / "app" / "study.toml")).to_toml() == STUDY.to_toml()
    readme = (tmp_path / "app" / "README.md").read_text()
    assert len(commands_in(readme)) == 4 + 2 * 3 and "--host 0.0.0.0 --port 9092" in readme
    assert "'fl.example.org', 'localhost', '127.0.0.1'" in (tmp_path / "app" / "make_keys.py").read_text()
    included = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["fab-include"]
    assert {*included} == {"/relay/*.py", "/study.toml", "/LICENSE"}


def test_what_cannot_be_exported_is_refused_by_name(tmp_path: Path) -> None:
    for address in ("fl.example.org", ":9092", "a:b", "a:0", "a:70000"):
        with pytest.raises(DeployError, match="HOST:PORT"):
            export(STUDY, tmp_path / "app", address, 2, {})
    with pytest.raises(StudyError, match=r"--nodes must be in 1..24"):
        export(STUDY, tmp_path / "app", "a:1", 25, {})
    with pytest.raises(DeployError, match=r"got '\.\./x'"):
        export(STUDY, tmp_path / "app", "a:1", 2, {"../x": ["a"]})
    with pytest.raises(DeployError, match="client 'h_1': nodes 'a' and 'b' both have it"):
        export(STUDY, tmp_path / "app", "a:1", 2, {"a": ["h_1"], "b": ["h_2", "h_1"]})
    with pytest.raises(DeployError, match="node 'a' has no clients"):
        export(STUDY, tmp_path / "app", "a:1", 2, {"a": []})
    assert not any(tmp_path.iterdir())
    export(STUDY, tmp_path / "app", "a:1", 2, {"alice": ["h 1"]})  # whose rows nobody here has
    assert "--client 'h 1'" in (tmp_path / "app" / "README.md").read_text()
    with pytest.raises(DeployError, match="is not empty"):
        export(STUDY, tmp_path / "app", "a:1", 2, {})
    with pytest.raises(DeployError, match=r"deployment.toml cannot be read.*deploy export"):
        Deployment.read(tmp_path)


@pytest.mark.deploy
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_readme_alone_starts_it_and_a_server_that_is_killed_goes_on_with_nodes_that_stayed(tmp_path: Path) -> None:
    """kill -9 of the server in round 2: the run ends as one that nothing disturbed."""
    needs_flower()
    app, port = tmp_path / "app", free(1)
    with Owners(tmp_path / "logs") as owners:
        exported = f"pacbayes-fl deploy export {write(STUDY, tmp_path)} app --nodes 2 --address localhost:{port}"
        owners.done("export", exported, tmp_path)
        keys, link, serve, resume, *nodes = commands_in((app / "README.md").read_text())
        owners.done("keys", keys, app)
        owners.type("early", serve, app)
        for k in range(2):
            mine = tmp_path / f"owner_{k}"
            shutil.copytree(app / "keys" / f"node_{k}", mine / "keys" / f"node_{k}")
            shutil.copy(app / "study.toml", mine)
            owners.type(f"check_{k}", nodes[2 * k], mine)
        assert "nobody answers at localhost" in owners.ended("early", code=1)
        owners.type("link", link, app)
        assert all("in each round an update of" in owners.ended(f"check_{k}") for k in range(2))
        until(lambda: "Uvicorn running" in owners.said("link") or owners.running["link"].poll() is not None)
        for k in range(2):
            owners.type(f"node_{k}", nodes[2 * k + 1], tmp_path / f"owner_{k}")
        owners.type("serve", serve, app)
        until(lambda: rounds_in(app / "run") >= 1, what=owners.said("serve"))
        owners.kill("serve")
        owners.running["serve"].wait()
        assert rounds_in(app / "run") < 3
        owners.done("resume", resume, app)
        owners.stop("node_0", "node_1", "link")
    assert_close(server_of(app / "run"), server_of(run_here(tmp_path)), 1e-9)
    assert [record.dropped for record in read_rounds(app / "run")] == [()] * 3
    assert not (app / "run" / "data.npz").exists()


def write(study: Study, folder: Path) -> Path:
    path = folder / "study.toml"
    path.write_text(study.to_toml())
    return path


def run_here(folder: Path) -> Path:
    run(STUDY, folder / "here")
    return folder / "here"

"""What the ClientApp passes on: to the worker, or to a process for one message."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.sockets import Listener

pytestmark = pytest.mark.deploy
pytest.importorskip("flwr", reason="Flower is not installed; `make deploy-test` has an environment with it")


def test_a_worker_is_asked(tmp_path: Path) -> None:
    from pacbayes_fl.federation.flower import client_app

    with Listener(tmp_path / "s") as listener:

        def work() -> None:
            line = listener.accept(5.0)
            assert line is not None
            with line:
                line.send(line.receive(5.0) + b"!")

        thread = threading.Thread(target=work)
        thread.start()
        assert client_app._answered(b"hello", str(tmp_path / "s"), "") == b"hello!"
        thread.join()
    with pytest.raises(DeployError, match="nobody listens"):
        client_app._answered(b"hello", str(tmp_path / "s"), "")


def test_without_a_worker_a_process_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pacbayes_fl.federation.flower import client_app

    asked = list[Any]()

    def run(command: list[str], **more: Any) -> Any:
        asked.append((command[1:], more["input"]))
        return type("Done", (), {"stdout": frames.encode({}, {})})

    monkeypatch.setattr(client_app.subprocess, "run", run)
    answer = client_app._answered(b"x", str(tmp_path / "none"), "node run 'my study.toml' --folder f")
    assert answer == frames.encode({}, {})
    assert asked == [(["-m", "pacbayes_fl", "node", "run", "my study.toml", "--folder", "f", "--once"], b"x")]

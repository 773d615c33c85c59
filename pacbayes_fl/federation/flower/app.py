"""The Flower app of a deployment: it holds where the relays are, and nothing of a method."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pacbayes_fl.files import make_folder

_PROJECT: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "pacbayes-fl-deployment"
version = "0.1.0"
description = "Passes messages of pacbayes_fl on"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "pacbayes-fl"
fab-format-version = 1
flwr-version-target = "1.41.0"
fab-include = ["/relay/*.py", "/study.toml", "/LICENSE"] # what travels to nodes: neither keys nor run folders
[tool.flwr.app.components]
serverapp = "relay.server:app"
clientapp = "relay.client:app"
[tool.flwr.app.config]
server = ""
"""


def write_app(folder: Path, study: str) -> None:
    """Write the Flower app.

    Args:
        folder: of the app.
        study: as TOML.
    """
    make_folder(folder / "relay")
    files = {
        "pyproject.toml": _PROJECT,
        "LICENSE": "Apache-2.0\n",
        "study.toml": study,
        "relay/__init__.py": "",
        "relay/server.py": "from pacbayes_fl.federation.flower import server_app\n\napp = server_app.app\n",
        "relay/client.py": "from pacbayes_fl.federation.flower import client_app\n\napp = client_app.app\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")

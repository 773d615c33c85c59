"""A study as a Flower app that its server's and its nodes' owners start on machines of their own."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import UNREADABLE, DeployError, StudyError
from pacbayes_fl.federation.flower import commands, processes, reach
from pacbayes_fl.federation.flower.app import write_app
from pacbayes_fl.federation.flower.keys import LOOPBACK
from pacbayes_fl.federation.flower.processes import Processes
from pacbayes_fl.federation.flower.scratch import scratch
from pacbayes_fl.federation.sockets import Listener
from pacbayes_fl.files import make_folder
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import roster
from pacbayes_fl.study.deployment.deploy import opened
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study

FILE: Final = "deployment.toml"
_NODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True)
class Deployment:
    """Who takes part.

    Args:
        address: HOST:PORT of the SuperLink, as nodes reach it.
        nodes: names of the clients whose rows each node holds, by the node's name.

    Raises:
        DeployError: naming an address or a node that cannot be.
    """

    address: str
    nodes: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Check names, and that no client is at two nodes."""
        reach.split(self.address)
        seen = dict[str, str]()
        for node, clients in self.nodes.items():
            if not _NODE.fullmatch(node) or node.startswith("."):
                raise DeployError(f"a node's name has letters, digits, '_', '-' and '.', got {node!r}")
            if not clients:
                raise DeployError(f"node {node!r} has no clients", hint=f"their names stand under [nodes] in {FILE}")
            for name in clients:
                if name in seen:
                    raise DeployError(f"nodes {seen[name]!r} and {node!r} both have it", client=name)
                seen[name] = node

    def to_toml(self) -> str:
        """Write it as TOML."""
        lines = [f"{json.dumps(node)} = {json.dumps([*clients])}" for node, clients in self.nodes.items()]
        head = "# The server's address as nodes reach it, and for every node the clients whose rows it holds.\n"
        return f"{head}address = {json.dumps(self.address)}\n[nodes]\n" + "\n".join(lines) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """Read it from an exported app.

        Args:
            folder: of the app.

        Raises:
            DeployError: when it is none.
        """
        try:
            table = tomllib.loads((folder / FILE).read_text("utf-8"))
            nodes = {str(node): tuple(map(str, clients)) for node, clients in table["nodes"].items()}
            return cls(str(table["address"]), nodes)
        except (*UNREADABLE, tomllib.TOMLDecodeError) as error:
            what = f"{folder / FILE} cannot be read: {error}"
            raise DeployError(what, hint="`pacbayes-fl deploy export STUDY DIR` makes such a folder") from error


def export(study: Study, folder: Path, address: str, nodes: int, named: Mapping[str, Sequence[str]]) -> None:
    """Write a Flower app with all that a federation on several machines needs but rows and keys.

    Args:
        study: what is to run.
        folder: new or empty.
        address: HOST:PORT of the server, as nodes will reach it.
        nodes: to which the clients of the study's own data are dealt, where none are named.
        named: clients of each node, by the node's name.

    Raises:
        DeployError: when the folder holds something, or a name or the address cannot be.
        StudyError: when the study takes more of clients than updates.
    """
    roster.check(study)
    if not named:
        names = load(study).groups["existing"].train.names
        if not 1 <= nodes <= len(names):
            raise StudyError(f"--nodes must be in 1..{len(names)}, the number of clients, got {nodes}")
        named = {f"node_{k}": names[k::nodes] for k in range(nodes)}
    deployment = Deployment(address, {node: tuple(clients) for node, clients in named.items()})
    if folder.exists() and any(folder.iterdir()):
        raise DeployError(f"{folder} is not empty", hint="choose another folder")
    make_folder(folder)
    write_app(folder, study.to_toml())
    files = {
        FILE: deployment.to_toml(),
        "make_keys.py": _SCRIPT.replace("HOSTS", repr([*dict.fromkeys((reach.split(address)[0], *LOOPBACK))])),
        "README.md": readme(study, deployment),
        ".gitignore": "/keys/\n/flwr/\n/run/\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def serve_app(
    folder: Path,
    out: Path,
    resume: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Result:
    """Run the rounds of an exported app with the nodes that are connected to its SuperLink.

    Args:
        folder: of the app, with its keys.
        out: run folder.
        resume: go on from the folder's last intact checkpoint; nodes may have stayed up.
        on_round: called after every round with its record.

    Returns:
        The result.

    Raises:
        DeployError: when Flower is not installed, or the SuperLink or a node cannot be reached.
        StudyError, DataError, ClientError, NumericalError, CheckpointError, PrivacyError: as `serve`.
    """
    processes.check_installed()
    deployment, study = Deployment.read(folder), Study.from_toml(str(folder / "study.toml"))
    reach.check_server(deployment.address, folder / "keys" / "ca.pem")
    home = folder / "flwr"
    commands.write_home(home, deployment.address, folder / "keys" / "ca.pem")
    environment = {**commands.ENVIRONMENT, "FLWR_HOME": str(home.resolve())}
    with (
        scratch() as short,
        Processes(home / "logs", environment) as running,
        Listener(short / "server") as listener,
    ):
        owners = _numbered(running, folder, deployment)
        commands.submit(running, folder, listener.path)
        with opened(running, listener, owners) as mail:
            return serve(study, out, mail, resume, on_round, claims=owners)


def _numbered(running: Processes, folder: Path, deployment: Deployment) -> dict[int, tuple[str, ...]]:
    """Give the clients of each node by Flower's number, and register keys that the SuperLink does not know yet."""
    path, known = folder / "flwr" / "nodes.json", commands.registered(running)
    try:
        before = {str(key): int(number) for key, number in json.loads(path.read_text("utf-8")).items()}
    except UNREADABLE:
        before = {}
    owners = dict[int, tuple[str, ...]]()
    for node, clients in deployment.nodes.items():
        key = folder / "keys" / node / "node.pub"
        try:
            digest = hashlib.sha256(key.read_bytes()).hexdigest()
        except OSError as error:
            raise DeployError(f"{key}: {error.strerror}", hint="python make_keys.py makes what is missing") from error
        if before.get(digest) not in known:
            before[digest] = commands.register(running, key)
            path.write_text(json.dumps(before), encoding="utf-8")
        owners[before[digest]] = clients
    return owners


def readme(study: Study, deployment: Deployment) -> str:
    """Write the exact commands for everybody who takes part.

    Args:
        study: what is to run.
        deployment: who takes part.

    Returns:
        Markdown.
    """
    host, port = reach.split(deployment.address)
    listen = host if host in LOOPBACK else "0.0.0.0"  # noqa: S104 - the server's owner is told what that means
    link = commands.of_link(Path("keys"), "127.0.0.1" if host in LOOPBACK else listen, port)
    quiet = " ".join(f"{name}={value}" for name, value in commands.ENVIRONMENT.items())
    return _README.format(
        study=study.name,
        method=study.method.name,
        count=len(deployment.nodes),
        link=f"{quiet} {shlex.join(link)}",
        nodes="\n".join(_of_node(node, clients, deployment.address) for node, clients in deployment.nodes.items()),
    )


def _of_node(node: str, clients: Sequence[str], address: str) -> str:
    own = " ".join(f"--client {shlex.quote(name)}" for name in clients)
    return _NODES.format(node=node, own=own, address=address)


_SCRIPT: Final = '''"""Make the keys of this deployment: what is there stays.

python make_keys.py         the authority, the server's certificate, and the keys of all nodes
python make_keys.py NAME    the keys of one node alone, on its owner's machine
"""

import sys
import tomllib
from pathlib import Path

from pacbayes_fl.federation.flower.keys import write_keys, write_node

here = Path(__file__).parent
hosts = HOSTS  # names and addresses under which nodes reach the server
days = 365  # for which its certificate holds; to renew it, remove keys/server.pem

if len(sys.argv) > 1:
    write_node(here / "keys" / sys.argv[1])
else:
    nodes = tomllib.loads((here / "deployment.toml").read_text("utf-8"))["nodes"]
    write_keys(here / "keys", list(nodes), hosts, days)
'''

_README: Final = """# {study}: {method} over {count} nodes

A Flower app, written by `pacbayes-fl deploy export`. `study.toml` is what runs, `deployment.toml` who takes part and
where the server is. Everybody needs Python 3.11 or newer and, in an environment of its own,

    pip install 'pacbayes_fl[flower]'

## The server's owner

All commands are for this folder. First the keys: an authority, the server's certificate, and a folder for every node.

```sh
python make_keys.py
```

Each node's owner gets `study.toml` and the folder `keys/NODE` of that node, over a channel that nobody else reads.
(Who wants a key that nobody else has seen runs `python make_keys.py NODE` and sends `keys/NODE/node.pub` alone, which
you put in its place; add your `keys/ca.pem` there.) `keys/ca.key` and `keys/server.key` stay here.

Start Flower's SuperLink, and leave it running; nodes join whenever they like. Only nodes and you should be able to
reach its port: Flower lets whoever reaches it submit apps.

```sh
{link}
```

Run the study. The rounds begin when all nodes are there; the run folder is as that of `pacbayes-fl run`, without rows.

```sh
pacbayes-fl deploy serve . --out run
```

After an interruption, with SuperLink and nodes still up:

```sh
pacbayes-fl deploy serve . --out run --resume
```

Ctrl-C ends each of them.
{nodes}"""

_NODES: Final = """
## The owner of {node}

In a folder with `study.toml` and `keys/{node}`. Where your rows are is said by `--set data.source=FILE`, if not by the
study. See what is wrong with them and what would leave your machine; nothing does yet:

```sh
pacbayes-fl node check study.toml {own}
```

Take part, until Ctrl-C. The folder `{node}` keeps what the node remembers; started again, it goes on from there.

```sh
pacbayes-fl node run study.toml {own} --folder {node} --server {address} --keys keys/{node}
```
"""

"""Flower's ClientApp: it passes bytes on to the node's worker, since Flower starts a new process for every message.

Where no worker listens it starts one for this message alone, by the command in the node's configuration.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames, sockets
from pacbayes_fl.federation.flower.parent import end_with_parent

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator,unused-ignore]
def train(message: Message, context: Context) -> Message:
    """Answer a message of the server.

    Args:
        message: bytes for the worker.
        context: its `node_config` has "worker", the path of a socket, and "command", which answers one message.

    Returns:
        The worker's answer, or why there is none.
    """
    end_with_parent(signal.SIGKILL)
    data = bytes(message.content["letter"]["data"])
    try:
        answer = _answered(data, str(context.node_config["worker"]), str(context.node_config.get("command", "")))
    except (DeployError, subprocess.CalledProcessError) as error:  # an answer, so that the round's record has it
        reason = "died while it answered" if isinstance(error, subprocess.CalledProcessError) else str(error)
        answer = frames.encode({"refused": f"the node's worker: {reason}"}, {})
    return Message(RecordDict({"letter": ConfigRecord({"data": answer})}), reply_to=message)


def _answered(data: bytes, worker: str, command: str) -> bytes:
    try:
        with sockets.connect(Path(worker)) as line:
            line.send(data)
            return line.receive()
    except DeployError as error:
        if error.cause != "absent" or not command:
            raise
    return subprocess.run(  # noqa: S603 - the command is of the node's owner
        [sys.executable, "-m", "pacbayes_fl", *shlex.split(command), "--once"],
        input=data,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout

"""Flower's ServerApp: it passes messages of the server, which is another process and outlives it, to the nodes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames, sockets
from pacbayes_fl.federation.flower.parent import end_with_parent
from pacbayes_fl.federation.flower.post import letter_of
from pacbayes_fl.federation.frames import Array

app = ServerApp()

_PAUSE: Final = 0.2  # least seconds between two looks for replies: who has replied asks for more 3 s later
_SHARE: Final = 0.05  # of the time that has passed: a look is work, which slow machines lack


@app.main()  # type: ignore[untyped-decorator,unused-ignore]
def main(grid: Grid, context: Context) -> None:
    """Serve the server until it hangs up.

    Args:
        grid: Flower's network.
        context: its `run_config` has "server", the path of a socket.
    """
    end_with_parent(signal.SIGKILL)  # else it asks a SuperLink that has gone, again and again
    with sockets.connect(Path(str(context.run_config["server"]))) as line:
        while True:
            try:
                config, letters = frames.decode(line.receive())
            except DeployError:  # the server has died: its next one submits an app of its own
                return
            if config["do"] == "end":
                return
            if config["do"] == "nodes":
                line.send(frames.encode({"nodes": [str(node) for node in grid.get_node_ids()]}, {}))
                continue
            _asked(grid, line, {int(node): one.data for node, one in letters.items()}, float(config["seconds"]))


def _asked(grid: Grid, line: sockets.Line, letters: dict[int, bytes], seconds: float) -> None:
    """Send all messages, and pass answers on as they come."""
    begun = time.monotonic()
    until = begun + seconds
    messages = [
        Message(RecordDict({"letter": ConfigRecord({"data": data})}), dst_node_id=node, message_type="train")
        for node, data in letters.items()
    ]
    waiting = {sent for sent in grid.push_messages(messages) if sent}
    while waiting and time.monotonic() < until:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            node = str(reply.metadata.src_node_id)
            if reply.has_content():
                data = letter_of(reply.content)
            else:
                data = frames.encode({"refused": f"Flower: {reply.error.reason}"[:200]}, {})
            line.send(frames.encode({"node": node}, {"": Array("", (), "", data)}))
        time.sleep(max(_PAUSE, min(1.0, _SHARE * (time.monotonic() - begun))))
    line.send(frames.encode({"over": True}, {}))

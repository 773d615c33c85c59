"""What a node makes of a released model: a run folder of its own clients, to certify and predict with."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pacbayes_fl.errors import DeployError
from pacbayes_fl.privacy import ledger
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import agreement
from pacbayes_fl.study.deployment.node import Released, StudyNode
from pacbayes_fl.study.deployment.node_folder import NodeFolder
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.held_rows import HISTORY
from pacbayes_fl.study.serving.release import SIGN, open_release


def results_of(study: Study, folder: Path, clients: Sequence[str] = (), release: Path | None = None) -> Path:
    """Find what a node has made of its run, or make it of a release.

    A node that took part personalises from the states that its clients kept; clients that never did are new ones.

    Args:
        study: of the deployment; its [data] says where this node's rows are.
        folder: of the node.
        clients: names of the node's; all when there are none.
        release: folder of a release; None for what the node made after the last round.

    Returns:
        A run folder of these clients, for `open_run`.

    Raises:
        DeployError: when there is none, or the release is of another study.
        CheckpointError: when a file is damaged, or a worker uses the folder.
    """
    place = NodeFolder(folder)
    joined = place.joined()
    if release is None:
        if joined is None or not (place.results(joined.run) / "metrics.json").is_file():
            hint = "a server asks for it after its last round; --release DIR takes a model that was released"
            raise DeployError(f"{folder} has no results of a finished run", hint=hint)
        return place.results(joined.run)
    known = open_release(release)
    spent, released = None, None
    if study.privacy.epsilon is not None:
        spent = (release / ledger.NAME).read_bytes()
        simulated = study.privacy.randomness == "simulation"
        released = len(Ledger(release, Budget(sys.float_info.max, 0.0), simulated=simulated))
    model = Released(
        known.method,
        known.server,
        known.round,
        known.shared,
        spent,
        released,
        agreement.units(known.study, known.schema),
    )
    of = (release / SIGN).read_bytes(), study.to_toml().encode(), "\n".join(sorted(clients)).encode()
    path = place.results(hashlib.sha256(b"\0".join(of)).hexdigest()[:16])
    with place.lock():
        if not (path / "metrics.json").is_file():
            if joined is not None and (seen := place.results(joined.run) / HISTORY).is_file():
                put(path, {HISTORY: seen.read_bytes()})  # of rows that have changed since, nobody knows which it saw
            StudyNode(study, load(study), place, clients or None).make(model, path)
    return path

"""The table of everything else that a run records: numbers of rounds, histograms, and numbers of clients' states.

Nothing is imported here that computes. Numbers of metrics are in `results.metrics`; a method's own numbers are those of
its `report` (rounds) and its `describe` (clients).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Place = Literal["rounds", "clients", "histograms"]


@dataclass(frozen=True)
class Recorded:
    """A number that a run records beside the scores of its clients.

    Args:
        name: in files; of a histogram what stands before the dot and the client's name.
        title: of a panel.
        label: on axes.
        unit: of its values on axes; nothing where empty.
        of: what it is recorded of: rounds (`rounds.jsonl`), clients' states (`clients.csv`), or rows of clients.
        learning: whether the learning curve draws it; figures of diagnostics draw all others.
        objective: whether a method climbs or descends it.
        progress: whether it is told while a run goes on.
    """

    name: str
    title: str
    label: str
    unit: str = ""
    of: tuple[Place, ...] = ("rounds",)
    learning: bool = False
    objective: bool = False
    progress: bool = False


ENTROPY: Final = "entropy"
"""Histograms of the predictive entropy of a client's test rows, under "entropy.CLIENT"."""

_BOTH: tuple[Place, ...] = ("rounds", "clients")
_NATS, _BYTES = "nats", "bytes"

_ROWS = (
    Recorded(
        "log_evidence",
        "log evidence of the clients",
        "mean log evidence",
        _NATS,
        learning=True,
        objective=True,
        progress=True,
    ),
    Recorded("log_likelihood", "log likelihood of the clients", "mean log likelihood", _NATS, progress=True),
    Recorded("elbo", "evidence lower bound of the clients", "mean ELBO", _NATS, learning=True, objective=True),
    Recorded(
        "loss",
        "training loss of the clients",
        "mean loss",
        "nats per row",
        learning=True,
        objective=True,
        progress=True,
    ),
    Recorded("spread", "spread of the particles", "particle spread", learning=True),
    Recorded("kl", "divergence from the prior", "mean KL divergence", _NATS),
    Recorded("score_norm", "score of the particles", "norm of the summed scores"),
    Recorded("effective_samples", "draws that carry the evidence", "mean effective sample size"),
    Recorded("jittered", "clients whose covariance needed jitter", "clients"),
    Recorded("without_curvature", "uncertain weights without curvature", "mean count per client", of=_BOTH),
    Recorded("uncertain", "weights that somebody is uncertain of", "weights"),
    Recorded("kept", "weights kept", "share of weights", of=_BOTH),
    Recorded("sent", "weights sent", "share of weights"),
    Recorded("bytes_dense", "upload as a dense tuple", "mean size per client", _BYTES),
    Recorded("bytes_sparse", "upload of kept weights", "mean size per client", _BYTES),
    Recorded("cluster", "cluster of each client", "cluster", of=("clients",)),
    Recorded("moved", "clients that changed their cluster", "clients"),
    Recorded("occupied", "clusters that have members", "clusters"),
    Recorded("clipped", "updates that were shortened", "clients"),
    Recorded("unscored", "clients without a score", "clients"),
    Recorded("clip", "clip that adapts", "largest norm of what a client sends"),
    Recorded("below_clip", "clients below the clip, with noise", "share of clients"),
    Recorded("epsilon", "privacy spent", "epsilon"),
    Recorded("epsilon_if_noise_were_secret", "privacy spent", "epsilon if the noise were secret"),
    Recorded("seconds", "duration of rounds", "time", "s"),
    Recorded(ENTROPY, "predictive entropy of test rows", "entropy / ln C", of=("histograms",)),
)

RECORDED: Final[Mapping[str, Recorded]] = MappingProxyType({one.name: one for one in _ROWS})
"""Everything that a run records beside scores, by name."""


def listing() -> list[tuple[str, str]]:
    """List everything that a run records beside scores.

    Returns:
        Names, each with a line on what it is.
    """
    lines = {name: f"{one.title}, {with_unit(one.label, one.unit)}" for name, one in RECORDED.items()}
    return [(name, f"of {' and '.join(RECORDED[name].of)}: {line}") for name, line in lines.items()]


def with_unit(label: str, unit: str) -> str:
    """Label an axis.

    Args:
        label: of what is on it.
        unit: of its values.

    Returns:
        Such as "power (kW)"; the label alone where the unit is "" or "1".
    """
    return f"{label} ({unit})" if unit not in ("", "1") else label


def in_progress() -> tuple[str, ...]:
    """Name the numbers shown during a run.

    Returns:
        Names, in the order of the table.
    """
    return tuple(one.name for one in RECORDED.values() if one.progress)

"""Numbers of rows that clients claim and nobody can count: who would outweigh all others, and who says two numbers."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping
from typing import Final

import torch

from pacbayes_fl.data.sent_moments import SentMoments
from pacbayes_fl.errors import DeployError, caller_stacklevel, listed

FEWEST: Final = 4  # clients, of whom one can stand out
FAR: Final = 30  # times the rows of others


def heavy(sizes: Mapping[str, float]) -> list[str]:
    """Find the few clients that together outweigh all others and are far from every one of these.

    s clients, fewer than half, of m_1 >= m_2 >= ... rows:  m_1 + ... + m_s > the others' sum,  m_s > 30 m_(s+1)

    One alone is compared with the client in the middle of the others, as it may claim little more than an honest large
    one. Several are not: the largest of heavy-tailed numbers of rows often outweigh the others together, but no gap is
    behind them. Of log-normal numbers (sigma up to 2) and of Pareto's (index from 1), of 5 to 1000 clients, several are
    found where one alone is not in fewer than 1 of 1000 federations.

    Args:
        sizes: rows of each client, by name.

    Returns:
        Their names, the largest first; nobody of fewer than four clients.
    """
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    rows = [sizes[name] for name in order]
    least = [max(1.0, one) for one in rows]
    for count in range((len(order) - 1) // 2, 0, -1) if len(order) >= FEWEST else ():
        other = least[count] if count > 1 else statistics.median(least[1:])
        if rows[count - 1] > FAR * other and sum(rows[:count]) > sum(rows[count:]):
            return order[:count]
    return []


def say_heavy(sizes: Mapping[str, float], what: str, advice: str) -> None:
    """Warn of the few clients whose rows would outweigh all others'.

    Args:
        sizes: rows that each client claims, by name.
        what: follows them, in words.
        advice: what can be done.
    """
    names = heavy(sizes)
    if not names:
        return
    own, rest = sum(sizes[name] for name in names), sum(rows for name, rows in sizes.items() if name not in names)
    if one := len(names) == 1:
        said = f"client {names[0]!r} says that it has {own:.0f} training rows"
    else:
        said = f"clients {listed([*map(repr, names)])} say that they have {own:.0f} training rows together"
    others = f"the {len(sizes) - len(names)} others {rest:.0f} together"
    warnings.warn(f"{said}, {others}: {what} {'it' if one else 'them'}; {advice}", stacklevel=caller_stacklevel())


def agreeing(sent: SentMoments, told: Mapping[str, int] | None) -> SentMoments:
    """Leave out moments of other numbers of rows than their clients have told, as each says by how much it weighs.

    Args:
        sent: by K clients.
        told: training rows of each client as it has joined with, by name; None where these are not told.

    Returns:
        The moments that count.

    Raises:
        DeployError: when nobody's do.

    Warns:
        UserWarning: naming who is left out; or who outweighs all others, where no other numbers are known.
    """
    sizes = dict(zip(sent.names, sent.size.tolist(), strict=True))
    if told is None:
        say_heavy(sizes, "moments of all clients follow", "data.scale = 'client' takes none")
        return sent
    wrong = [name for name, size in sizes.items() if size != told[name]]
    if not wrong:
        return sent
    texts = [f"{name!r} ({told[name]} told, moments of {sizes[name]:.6g})" for name in wrong]
    what = f"moments of other numbers of training rows than were told when their nodes joined: {listed(texts)}"
    hint = "look at their nodes; one without 'rows' in its deploy.share tells 1"
    if len(wrong) == len(sizes):
        raise DeployError(what, hint=hint)
    warnings.warn(f"{what}: left out of the moments of all clients ({hint})", stacklevel=caller_stacklevel())
    return sent.select(torch.tensor([k for k, name in enumerate(sent.names) if name not in {*wrong}]))

"""Clients that claim rows which nobody can count."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.sent_moments import SentMoments
from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import arrays, frames
from pacbayes_fl.study.deployment import claims
from pacbayes_fl.study.deployment.server import serve
from tests.study.deployment.test_server import NAMES, nodes_of, reach, study_of


def sizes(*rows: float) -> dict[str, float]:
    return {f"c{k:03}": one for k, one in enumerate(rows)}


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([12] * 8 + [10**9] * 2, 2),
        ([12] * 8 + [10**9, 4 * 10**8], 2),
        ([12] * 6 + [10**9] * 4, 4),
        ([12] * 9 + [10**9], 1),
        ([12] * 5 + [10**9] * 5, 0),  # the others may be the odd ones
        ([12] * 8 + [300] * 2, 0),  # not far
        ([12] * 4 + [10**9] * 1 + [300], 1),
        ([500] * 30 + [100_000], 1),
        ([500] * 30 + [14_000, 16_000], 0),
        ([40 * 30**k for k in range(6)], 1),  # each far from the next, so that one alone outweighs all
        ([5, 4, 0, 0, 0, 0], 0),
        ([10**9, 1, 1], 0),
        ([10**9] * 3, 0),
        ([7] * 9, 0),
        ([7], 0),
        ([], 0),
    ],
    ids=str,
)
def test_few_that_are_far_from_all_others_and_outweigh_them_are_found(rows: list[float], count: int) -> None:
    known = sizes(*rows)
    found = claims.heavy(known)
    assert len(found) == count and sorted((known[name] for name in found), reverse=True) == sorted(rows)[::-1][:count]


@pytest.mark.parametrize("clients", [5, 10, 30, 100])
def test_honest_numbers_with_heavy_tails_are_warned_of_no_oftener_for_several_clients(clients: int) -> None:
    """One client of such a federation may hold most rows; two or more with a gap behind them are rare."""
    draw = np.random.default_rng(0)
    shapes: tuple[Any, ...] = (
        lambda: np.exp(1.5 * draw.standard_normal(clients)),
        lambda: np.exp(2.0 * draw.standard_normal(clients)),
        lambda: draw.random(clients) ** (-1 / 1.16),
    )
    for shape in shapes:
        more = 0
        for _ in range(1000):
            rows = np.sort(np.ceil(20 * shape()))[::-1]
            one = rows[0] > max(rows[1:].sum(), 30 * np.median(rows[1:]))
            found = claims.heavy(sizes(*rows.tolist()))
            assert found or not one
            more += bool(found) and not one
        assert more <= 3


def test_several_are_named_and_what_follows_them() -> None:
    with pytest.warns(UserWarning) as said:
        claims.say_heavy(sizes(3, 10**9, 4, 10**9, 5), "averages follow", "do this")
    (text,) = [str(one.message) for one in said]
    start = "clients 'c001', 'c003' say that they have 2000000000 training rows together, the 3 others 12 together"
    assert text == f"{start}: averages follow them; do this"
    with pytest.warns(
        UserWarning, match=r"^client 'c001' says that it has 1000 training rows, the 3 others 6 together: .* it;"
    ):
        claims.say_heavy(sizes(1, 1000, 2, 3), "averages follow", "do this")


def test_moments_of_other_rows_than_were_told_are_left_out() -> None:
    x = torch.arange(8.0, dtype=torch.float64)
    sent = SentMoments.of(ClientBatch.pad([(x[:n, None], x[:n]) for n in (3, 5, 8)]))
    told = dict(zip(sent.names, (3, 5, 8), strict=True))
    first, second, _ = sent.names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert claims.agreeing(sent, told) is sent and claims.agreeing(sent, None) is sent
    with pytest.warns(
        UserWarning, match=rf"were told when their nodes joined: '{second}' \(7 told, moments of 5\): left out"
    ):
        kept = claims.agreeing(sent, told | {second: 7})
    assert [*kept.names] == [sent.names[0], sent.names[2]] and kept.size.tolist() == [3.0, 8.0]
    with pytest.raises(
        DeployError, match=rf"told when their nodes joined: '{first}' \(1 told, moments of 3\), .*look at"
    ):
        claims.agreeing(sent, dict.fromkeys(sent.names, 1))


def claiming(name: str, rows: float) -> Any:
    """Let the moments of a client be of other rows, and of another mean."""

    def altered(node: int, data: bytes) -> bytes:
        frame = frames.decode(data)
        if "moments" not in frame.arrays:
            return data
        own = frame.config["clients"]
        told = arrays.unpack({"moments": torch.zeros(len(own), 8, dtype=torch.float64)}, frame.arrays)["moments"]
        if name in own:
            told[own.index(name), :2], told[own.index(name), 2:4] = rows, 5.0
        return frames.encode(frame.config, arrays.pack({"moments": told}))

    return altered


def test_one_who_tells_many_rows_with_its_moments_alone_does_not_decide_how_all_are_scaled(tmp_path: Path) -> None:
    scaled = ("data.scale=pooled", "federation.rounds=1")
    study, withheld = study_of(*scaled), study_of(*scaled, "deploy.share=['moments']")
    serve(study, tmp_path / "honest", reach(nodes_of(study)))
    with pytest.warns(UserWarning, match=rf"'{NAMES[1]}' \(\d+ told, moments of 1e\+12\): left out of the moments"):
        serve(study, tmp_path / "left out", reach(nodes_of(study), claiming(NAMES[1], 1e12)))
    with pytest.warns(
        UserWarning, match=rf"^client '{NAMES[1]}' says that it has 1000000000000 training rows.*moments of all"
    ):
        serve(withheld, tmp_path / "said", reach(nodes_of(withheld), claiming(NAMES[1], 1e12)))
    means = []
    for name in ("honest", "left out", "said"):
        method = (tmp_path / name / "scaling.json").read_text()
        means.append(float(method.partition('"mean": ')[2].partition(",")[0]))
    assert abs(means[1] - means[0]) < 0.5 < abs(means[2] - means[0])

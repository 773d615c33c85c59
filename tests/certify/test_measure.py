"""Numbers of clients that bounds are made of."""

from __future__ import annotations

import torch

from pacbayes_fl.bounds import SaturatingSquare
from pacbayes_fl.certify.measure import Measured, measure, priors_of
from pacbayes_fl.certify.request import Request
from pacbayes_fl.certify.rows import bound_rows_of
from pacbayes_fl.study.run import train
from tests.tiny import tiny


def test_every_client_is_measured_once_and_those_wanted_are_taken() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    seen: list[int] = []
    for index, _, some in priors_of(trained, group):
        assert some.rows.names == tuple(group.rows.names[k] for k in index.tolist())
        seen += index.tolist()
    assert sorted(seen) == list(range(group.rows.clients))
    told: list[int] = []
    found = measure(trained, group, SaturatingSquare(), Request(), told.append)
    assert sum(told) == len(found.risk) == group.rows.clients and found.log_z is None and found.draws is None
    assert torch.equal(found.n, group.repeats.n) and bool((found.kl >= 0).all())
    wanted = torch.arange(group.rows.clients) % 2 == 0
    for whole, part in zip(found, found.select(wanted), strict=True):
        assert whole is part is None or torch.equal(whole[wanted], part)
    assert isinstance(found, Measured)

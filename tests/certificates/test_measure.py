"""Numbers of clients that bounds are made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.bounds import SaturatingSquare
from pacbayes_fl.certificates import measure as study_certify_measure
from pacbayes_fl.certificates.measure import Measured, measure, with_priors
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import bound_rows_of
from pacbayes_fl.study.run import train
from tests.tiny import tiny


def test_every_client_is_measured_once_and_those_wanted_are_taken() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    seen: list[int] = []
    for index, some in with_priors(trained, group, lambda prior, some: some):
        assert some.rows.names == tuple(group.rows.names[k] for k in index.tolist())
        seen += index.tolist()
    assert sorted(seen) == list(range(group.rows.clients))
    told: list[int] = []
    result = measure(trained, group, SaturatingSquare(), Request(), told.append)
    assert sum(told) == len(result.risk) == group.rows.clients and result.log_z is None and result.draws is None
    assert torch.equal(result.n, group.repeats.n) and bool((result.kl >= 0).all())
    wanted = torch.arange(group.rows.clients) % 2 == 0
    for whole, part in zip(result, result.select(wanted), strict=True):
        assert whole is part is None or torch.equal(whole[wanted].nan_to_num(-1.0), part.nan_to_num(-1.0))
    assert isinstance(result, Measured)


def test_losses_that_need_the_memory_are_taken_of_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    whole, real = (
        measure(trained, group, SaturatingSquare(), Request(), lambda _: None),
        study_certify_measure.gibbs_losses,
    )

    def failing(posterior: Any, rows: Any, *rest: Any) -> Any:
        if rows.clients > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(posterior, rows, *rest)

    monkeypatch.setattr(study_certify_measure, "gibbs_losses", failing)
    told: list[int] = []
    with pytest.warns(UserWarning, match="GPU memory exhausted by"):
        short = measure(trained, group, SaturatingSquare(), Request(), told.append)
    assert told == [1] * group.rows.clients
    for mine, theirs in zip(short.select(whole.n > 0), whole.select(whole.n > 0), strict=True):
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12, equal_nan=True)

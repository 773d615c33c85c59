"""APFL as worked out on quadratics, and its limits: FedAvg, and training alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.baselines.apfl import APFL
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from tests.methods.by_hand import MODEL
from tests.worlds import START, A, B, Quadratic, after, descent, numbers, personal, quadratics


def apfl(**options: Any) -> APFL:
    return APFL(Quadratic(), descent(2, 0.1), **{"mixing": 0.25} | options)


def test_a_round_is_as_worked_out() -> None:
    last = after(1, apfl(), quadratics(), START)
    assert numbers(last.clients.theta) == pytest.approx([1.9040625, 1.8325, 1.55078125], abs=1e-12)
    assert numbers(last.update.theta) == pytest.approx([1.62, 1.36, 0.25], abs=1e-12)
    assert last.server.theta.item() == pytest.approx(1.076666666667, abs=1e-12)


def test_the_share_descends_the_mixture_s_loss() -> None:
    last = after(1, apfl(share_rate=0.01), quadratics(), START)
    slopes = [0.480354125977, 0.90365625, 8.374414443970]
    assert numbers(last.clients.share) == pytest.approx([0.25 - 0.01 * slope for slope in slopes], abs=1e-12)
    far = after(1, apfl(share_rate=1.0), quadratics(), START).clients.share
    assert numbers(far) == [0.0] * 3


def test_personal_models_mix_what_the_server_sends_with_what_clients_keep() -> None:
    last = after(1, apfl(), quadratics(), START)
    w = last.server.theta.item()
    expected = [0.25 * v + 0.75 * w for v in numbers(last.clients.theta)]
    assert personal(apfl(), last, quadratics()) == pytest.approx(expected, abs=1e-14)


def test_a_newcomer_descends_the_mixture_s_loss_by_its_own_weights() -> None:
    """The global ones stay: u <- u - rate alpha^2 f'(u)."""
    method = apfl(join_passes=5, mixing=0.5)
    last = after(1, method, quadratics(), START)
    w = last.server.theta.item()
    expected = [b + (1 - 0.1 * 0.25 * a) ** 10 * (w - b) for a, b in zip(A, B, strict=True)]
    assert personal(method, last, quadratics(), fresh=True) == pytest.approx(expected, abs=1e-12)


def test_the_global_weights_are_fedavg_s_and_without_a_share_everybody_s() -> None:
    last = after(3, apfl(mixing=0.0), quadratics(), START)
    plain = after(3, FedAvg(Quadratic(), descent(2, 0.1), "uniform"), quadratics(), START)
    assert torch.equal(last.server.theta, plain.server.theta)
    assert personal(apfl(mixing=0.0), last, quadratics()) == [plain.server.theta.item()] * 3


def test_own_weights_alone_are_trained_alone() -> None:
    last = after(3, apfl(mixing=1.0), quadratics(), START)
    assert personal(apfl(mixing=1.0), last, quadratics()) == pytest.approx(
        [b + (1 - 0.1 * a) ** 6 * (START - b) for a, b in zip(A, B, strict=True)], abs=1e-12
    )


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_are_shares(value: float) -> None:
    with pytest.raises(StudyError, match="mixing must be from 0 to 1, got"):
        APFL(MODEL, mixing=value)

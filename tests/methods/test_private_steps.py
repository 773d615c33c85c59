"""Steps away from a message, and back."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.methods import private_steps
from tests.laws.cases import bits


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


SENT = Pair(torch.tensor([[1.0, 2.0], [5.0, -1.0], [0.5, 0.0]]), torch.tensor([[3.0], [4.0], [8.0]]))
MESSAGE = Pair(torch.tensor([1.0, 1.0]), torch.tensor([2.0]))


def test_steps_are_what_clients_changed_and_their_mean_leads_to_the_clients_mean() -> None:
    steps = private_steps.deltas(SENT, MESSAGE)
    assert steps.a.tolist() == [[0.0, 1.0], [4.0, -2.0], [-0.5, -1.0]] and steps.b.tolist() == [[1.0], [2.0], [6.0]]
    mean = tensors.tree_map(lambda leaf: leaf.mean(0, keepdim=True), steps)
    result = private_steps.apply_delta(mean, MESSAGE)
    torch.testing.assert_close(result.a, SENT.a.mean(0, keepdim=True))
    torch.testing.assert_close(result.b, SENT.b.mean(0, keepdim=True))
    assert bits(private_steps.apply_delta(steps, MESSAGE)) == bits(SENT)


def test_a_client_that_stays_sends_zeros() -> None:
    still = private_steps.deltas(tensors.expand(MESSAGE, 2), MESSAGE)
    assert not still.a.any() and not still.b.any()


def test_weights_by_rows_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"weighting = 'rows' needs .* \(method.weighting = 'uniform'\)"):
        private_steps.alike("rows")
    private_steps.alike("uniform")


def test_what_is_withheld_is_not_a_number() -> None:
    assert private_steps.unknown(SENT.a, 3).isnan().tolist() == [True] * 3 and private_steps.unit_weights(
        SENT.a, 2
    ).tolist() == [1.0, 1.0]
    assert private_steps.unknown(SENT.a).dtype == private_steps.unit_weights(SENT.a).dtype == torch.float64
    assert "its clients send nothing" in str(private_steps.no_release_error("Persistence"))

"""Models that are fine-tuned on a client's rows learn from later ones, and say so where they are not."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.fedsi import FedSI
from pacbayes_fl.methods.fine_tuning import FineTuned
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

NETWORK = BayesianMLP((1, 3, 1), Gaussian(), torch.float64)


@pytest.mark.parametrize("method", [FedAvg, FedSI])
def test_later_rows_need_fine_tuning(method: type[FedAvg]) -> None:
    nothing: tuple[None, None, None] = (None, None, None)
    assert issubclass(method, FineTuned)
    assert method(NETWORK, finetune=1).absorb(None, Nothing(), *nothing) == Nothing()  # type: ignore[arg-type]
    text = rf"{method.__name__} does not learn from later rows: .* \(method\.finetune lets them learn; or run the study"
    with pytest.raises(StudyError, match=text):
        method(NETWORK, finetune=0).absorb(None, Nothing(), *nothing)  # type: ignore[arg-type]

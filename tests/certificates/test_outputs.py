"""What hypotheses say of rows: numbers of one kind, whatever library they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, OneHotCategorical

from pacbayes_fl import certify_model
from pacbayes_fl.bounds import ClippedNLL
from pacbayes_fl.certificates.outputs import outputs_of, said_of
from pacbayes_fl.errors import AssumptionError

FINE: dict[str, Any] = {"source": "split", "independent": True}


def sure(x: Tensor) -> Tensor:
    """Probabilities [n, 2] of a classifier that is sure of the label 1 where x > 0, and of 0 elsewhere."""
    return nn.functional.one_hot((x[:, 0] > 0).long(), 2).double()


def rows(n: int, wrong: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, generator=generator).double()
    return x, (x[:, 0] > 0).long() ^ (torch.rand(n, generator=generator) < wrong).long()


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, np.float32])
def test_probabilities_are_not_taken_for_scores(kind: Any) -> None:
    # softmax of (0, 1) is (.27, .73): a sure error would cost 1.3 of 11.5 nats, and a risk of .4 be certified at .1
    x, y = rows(500, 0.4)

    def given(x: Tensor) -> Any:
        return sure(x).to(kind) if isinstance(kind, torch.dtype) else sure(x).numpy().astype(kind)

    with pytest.raises(AssumptionError, match=r"got probabilities: they sum to 1 in every row.*logarithms"):
        certify_model(given, rows=(x, y), loss="clipped-nll", **FINE)
    by_log = certify_model(lambda x: sure(x).clamp_min(1e-300).log(), rows=(x, y), loss="clipped-nll", **FINE)
    assert by_log.terms["risk"].item() == pytest.approx((sure(x).argmax(1) != y).double().mean().item())
    assert certify_model(given, rows=(x, y), **FINE).valid  # the most probable label is that of the scores too


def test_distributions_of_labels_say_their_log_probabilities() -> None:
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]], requires_grad=True)
    for kind in (Categorical, OneHotCategorical):
        said = said_of(lambda x, kind=kind: kind(probs=probs), None, torch.tensor([0, 1]), ClippedNLL())
        torch.testing.assert_close(said.exp(), probs.detach().double())
    assert not outputs_of(Normal(probs[:, 0], 1.0)).requires_grad


def test_a_predictor_may_write_its_answers_over_one_another() -> None:
    x, y = rows(200, 0.0)
    buffer = np.empty(200)

    def sampled(generator: torch.Generator) -> Any:
        slope = 1.0 + torch.randn((), generator=generator).item()

        def predict(x: Tensor) -> Any:
            return np.multiply(x[:, 0].numpy(), slope, out=buffer[: len(x)])

        return predict

    assert certify_model(None, rows=(x, y.double()), sample=sampled, kl=1.0, draws=20, **FINE).valid

"""Your own loss for certificates: bounded, fixed before the rows, and checked by the laws that bounds rest on."""

from dataclasses import dataclass

import torch

import pacbayes_fl as fl
from pacbayes_fl.testing import check_loss


@dataclass(frozen=True)
class CappedAbsolute:
    """Absolute error that stops growing, min(|e|, limit) / limit.

    Args:
        limit: error at which it is 1, in units of the targets.
    """

    limit: float = 2.0
    low = 0.0
    high = 1.0
    convex = False  # in the prediction: averages of predictions may then be certified by their parts

    @property
    def name(self):
        """Name that certificates have; requests are counted by the code and all it holds."""
        return f"absolute error capped at {self.limit:g}"

    def __call__(self, prediction, y):  # [*] and [*] -> a value for each row, of that row alone
        """Loss by row."""
        return ((prediction - y).abs() / self.limit).clamp_max(1.0)

    def expected(self, mean, variance, y):  # marks a loss of numbers; leave it out where predictions are of labels
        """Bound the average over a Gaussian prediction from above: E min(|e|, l) <= min((E e^2)^(1/2), l)."""
        return (((mean - y).square() + variance).sqrt() / self.limit).clamp_max(1.0)


check_loss(CappedAbsolute())  # its range, its rows, its average, ...
x = torch.linspace(-1, 1, 400, dtype=torch.float64).unsqueeze(1)
y = 2 * x[:, 0] + 0.3 * torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
for loss in (CappedAbsolute(), CappedAbsolute(1.0)):
    certificate = fl.certify_model(
        lambda x: 2 * x[:, 0], rows=(x, y), loss=loss, source="data-free", independent=True, tried=2
    )
    print(loss.name, round(certificate.value.item(), 3), certificate.valid)
# a run is certified with it by `certify --loss mine.py:CappedAbsolute=2`, or `fl.Request(loss=CappedAbsolute(2.0))`

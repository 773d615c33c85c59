"""Your own method: a dataclass with both halves of a round, checked by the laws and run like any other."""

from dataclasses import dataclass

import torch

from pacbayes_fl import BayesianMLP, Gaussian, Study, run
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import GaussianPrior
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.options import option
from pacbayes_fl.testing import check_method


@dataclass(frozen=True)
class Pull(WeightAveraging):
    """FedAvg whose clients maximise ln p(D_k | theta) + ln N(theta; w, std^2), w the global weights.

    Args:
        std: of the pull towards the global weights.
    """

    std: float = option(1.0, above=0, symbol="sigma")

    def descend(self, theta, batch, noise, passes=1):
        """Descend from theta [K, D]; what is sent, averaged and scored is that of any averaging method."""
        pull = GaussianPrior(theta, torch.full_like(theta, self.std**2))
        return map_estimate.fit(self.model, self.local, theta, batch, noise, passes, prior=pull)


check_method(Pull)  # names every law that the method breaks

x = 2 * torch.rand(4, 16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
clients = {f"house_{k}": (one, torch.sin(3 * one[:, 0] + 0.2 * k)) for k, one in enumerate(x)}
network = BayesianMLP((1, 8, 1), Gaussian(), torch.float64)
study = Study.from_table({"federation": {"rounds": 30}})
for std in (0.01, 1.0):
    result = run(study, method=Pull(network, std=std), data=clients)
    print("std", std, "RSMSE", result.column("existing", "rsmse"))

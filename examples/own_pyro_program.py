"""Your own Pyro program as the likelihood of every variational method; the guide is made for you."""

from typing import ClassVar

import pyro
import torch
from pyro.distributions import Normal
from torch.nn.functional import softplus

from pacbayes_fl import ClientBatch, FederationPlan, PFedBayes, WeightModel, join, run_rounds


class NoisyCurve(WeightModel):
    """A network for the mean and for the noise."""

    shapes: ClassVar = {"hidden": (1, 16), "bias": (16,), "out": (16, 2)}  # of the weights
    dtype = torch.float64

    def model(self, batch, prior, zeta, scale):
        """Draw the weights of every client, and its rows."""
        with pyro.plate("clients", batch.clients, dim=-1):
            with pyro.poutine.scale(scale=zeta):  # weight of the KL divergence
                w = {name: pyro.sample(name, prior.site(name)) for name in self.shapes}
            mean, raw = (torch.tanh(batch.x @ w["hidden"] + w["bias"].unsqueeze(-2)) @ w["out"]).unbind(-1)
            with pyro.poutine.scale(scale=scale):  # all rows over the minibatch's
                rows = Normal(mean, 0.05 + softplus(raw)).mask(batch.mask).to_event(1)
                pyro.sample("y", rows, obs=batch.y)


x = torch.linspace(-2, 2, 12, dtype=torch.float64).unsqueeze(1)
batch = ClientBatch.pad([(x, torch.sin(x[:, 0] + 0.1 * k)) for k in range(6)])
method = PFedBayes(NoisyCurve())
state = run_rounds(method, batch, FederationPlan(rounds=10, seed=1))

newcomer = ClientBatch.pad([(x[:4], torch.sin(x[:4, 0]))], ["new"])  # never trained
predictive = join(method, state.server, newcomer, seed=1).predict(x.unsqueeze(0))
print(predictive.mean)  # [1, 12], averaged over draws of the weights

"""Your own GPyTorch mean and kernel as the prior that the federation learns, and your own clients."""

import gpytorch
import torch

from pacbayes_fl import ClientBatch, FederationPlan, GaussianHyperPrior, GPyTorchPrior, PacPFL, join, run_rounds

generator = torch.Generator().manual_seed(0)


def house(phase: float, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows x [rows, 1] and targets y [rows] of a house."""
    x = 6.0 * torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, 0] + phase) + noise


batch = ClientBatch.pad([house(0.2 * k, 6 + k) for k in range(8)], [f"house_{k}" for k in range(8)])
kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))
prior = GPyTorchPrior(  # every free parameter becomes a hyper-parameter
    gpytorch.means.LinearMean(1), kernel, input_dim=1
)
method = PacPFL(prior, GaussianHyperPrior(prior.location(), std=0.5), particles=4)
state = run_rounds(method, batch, FederationPlan(rounds=40, seed=1))

newcomer = ClientBatch.pad([house(0.5, 5)], ["house_new"])  # never trained
posterior = join(method, state.server, newcomer, seed=1)
predictive = posterior.predict(torch.linspace(0, 6, 7, dtype=torch.float64).view(1, 7, 1))
print(predictive.mean, predictive.variance.sqrt())  # [1, 7], noise included
print(predictive.quantile(torch.tensor([0.1, 0.9])))  # [2, 1, 7]; also sample(3, noise=1), cdf, log_prob

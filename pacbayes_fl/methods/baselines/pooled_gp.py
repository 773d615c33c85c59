"""Pooled GP: one GP on everybody's rows, with inducing points when they are many (PAC-PFL section 8.6.2).

The paper states no number of inducing points. Here the variational bound of Titsias (AISTATS 2009) is used, whose
inducing inputs are learned together with the hyper-parameters; with every row as an inducing input it is the exact GP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import NumericalError, StudyError
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.inference.optim import adam, adam_init
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import CentralisedMethod, Rows, pool
from pacbayes_fl.methods.gp_choices import GP_SEARCH, STDS, STEPS
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.functions.collapsed import collapsed_bound, pieces
from pacbayes_fl.posteriors.hyper_posterior import CentredFlatHyperPrior
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import Residuals

_JITTER = 1e-6
_LEAST_LEFT = 1e-6  # of 1 - h, which is positive but for rounding


class Server(NamedTuple):
    """A GP for prediction: hyper-parameters, inducing inputs and the posterior of their values.

    Args:
        theta: [D].
        inducing: inducing inputs [I, d], in standardised units.
        weight: [I], mean = k(x*, inducing) weight.
        reduction: [I, I], variance = k(x*, x*) - k(x*, inducing) reduction k(inducing, x*).
        seed: of the choice of inducing rows, [].
    """

    theta: Tensor
    inducing: Tensor
    weight: Tensor
    reduction: Tensor
    seed: Tensor


class Parameters(NamedTuple):
    """Parameters of the fit: theta [D] and inducing inputs [I, d]."""

    theta: Tensor
    inducing: Tensor


@dataclass(frozen=True, eq=False)
class PooledPosterior:
    """The pooled GP as every client's posterior: nothing in it is the client's own.

    Args:
        model: the prior.
        server: the fitted model, without a client dimension.
        rows: of the K clients, [K, N, d]; whether they were among those of the fit, it cannot know.
    """

    model: FunctionModel
    server: Server
    rows: ClientBatch

    @property
    def personal(self) -> bool:
        """A client's own rows are among everybody's."""
        return False

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive distribution.

        Args:
            x: inputs [K, M, d].

        Returns:
            One normal per row, [K, 1, M], noise included.
        """
        with torch.no_grad():
            theta, _, mean, explained = self._function(x)
            variance = (self.model.variance(theta, x) - explained).clamp_min(0.0)
            noise = self.model.noise(theta, x)
        return NormalMixture(mean.new_zeros(len(x), 1), mean, variance + noise)

    def _function(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return theta [K, 1, D], k(inducing, x) [K, 1, I, M], the mean and the variance that rows took away."""
        theta = self.server.theta.expand(len(x), 1, -1)
        cross = self.model.covariance(theta, self.server.inducing.expand(len(x), -1, -1), x)
        mean = self.model.mean(theta, x) + self.server.weight @ cross
        return theta, cross, mean, (cross * (self.server.reduction @ cross)).sum(-2)

    def leave_one_out(self) -> Residuals:
        """Residuals of the clients' rows, which must be among those of the fit, each predicted from all others.

        With q = k_u' K_uu^-1 k_u and the leverage h = (q - k_u' R k_u) / s^2 of a row, R the `reduction`,
        y - mu_-i = (y - mu) / (1 - h),  s_-i^2 = k - q + s^2 / (1 - h)    (Sherman and Morrison; hyper-parameters and
        inducing inputs stay)

        Returns:
            Residuals over the predictive standard deviation [K, 1, N].
        """
        x, y = self.rows.x, self.rows.y.unsqueeze(1)
        with torch.no_grad():
            theta, cross, mean, explained = self._function(x)
            noise = self.model.noise(theta, x)
            inducing = self.server.inducing.unsqueeze(0)
            k_uu = self.model.covariance(theta[:1], inducing).squeeze(0, 1)
            identity = torch.eye(len(k_uu), dtype=x.dtype, device=x.device)
            lower = torch.linalg.cholesky(k_uu + _JITTER * identity)
            through = torch.linalg.solve_triangular(lower, cross, upper=False).square().sum(-2)
            left = (1.0 - (through - explained) / noise).clamp(_LEAST_LEFT, 1.0)
            variance = (self.model.variance(theta, x) - through).clamp_min(0.0) + noise / left
        return Residuals(mean.new_zeros(len(x), 1), (y - mean) / left * variance.rsqrt(), self.rows.mask)


@final
@dataclass(frozen=True)
class PooledGP(CentralisedMethod[Server]):
    """One GP for all, trained where all rows are.

    Args:
        model: prior with hyper-parameters theta.
        init_std: spread of the initial draw of theta.
        rate: learning rate of Adam.
        steps: Adam steps of the fit.
        inducing: number of inducing points.
        exact_up_to: most rows for which the exact GP is used instead.
    """

    model: FunctionModel
    init_std: float = option(0.3, above=0)
    rate: float = option(1e-2, above=0)
    steps: int = option(200, low=0)
    inducing: int = option(200, low=1, symbol="I", paper=Paper(..., "not stated, section 8.6.2"))
    exact_up_to: int = option(2000, low=0)

    def __post_init__(self) -> None:
        """Check the ranges, and that the noise is Gaussian."""
        check(self)
        if self.model.degrees_of_freedom(self.model.location().view(1, 1, -1)) is not None:
            raise StudyError("a pooled GP takes Gaussian noise", hint="model.likelihood = 'gaussian'")

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw theta; no row is known yet."""
        theta = CentredFlatHyperPrior(self.init_std)(self.model).sample(1, generator).squeeze(0)
        empty = theta.new_zeros(0, self.model.input_dim)
        seed = torch.randint(2**31, (), generator=generator)
        return Server(theta, empty, theta.new_zeros(0), theta.new_zeros(0, 0), seed)

    def server(self, server: Server, update: Rows, n_clients: int) -> Server:
        """Fit one GP to the pooled rows."""
        x, y = pool(update)
        if not len(y):  # every client was dropped, which the engine reports
            return server
        try:
            if len(y) <= self.exact_up_to:
                p = Parameters(self._fit_exact(server.theta, x, y), x)
            else:
                generator = torch.Generator().manual_seed(int(server.seed))
                chosen = torch.randperm(len(y), generator=generator)[: self.inducing].to(x.device)
                p = self._fit_inducing(Parameters(server.theta, x[chosen]), x, y)
            with torch.no_grad():
                one = pieces(self.model, p.theta.view(1, 1, -1), p.inducing.unsqueeze(0), _everybody(x, y), _JITTER)
                lower, inner, projected = one.lower, one.inner, one.projected
                identity = torch.eye(len(lower), dtype=x.dtype, device=x.device)
                from_prior = torch.cholesky_solve(identity, lower)
                whitened = torch.linalg.solve_triangular(lower.T, torch.cholesky_inverse(inner), upper=True)
                weight = whitened @ projected
                reduction = from_prior - torch.linalg.solve_triangular(lower.T, whitened.T, upper=True)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise NumericalError("the pooled covariance cannot be factored", cause=str(error)) from error
        return Server(p.theta, p.inducing, weight, reduction, server.seed)

    def _fit_exact(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        everybody = _everybody(x, y)
        moments, exact = adam_init(theta), self.model.with_inducing(None)
        for _ in range(self.steps):
            score = particle_scores(exact, theta.view(1, -1), everybody).score
            theta, moments = adam(theta, -score.view(-1), moments, self.rate)
        return theta

    def _fit_inducing(self, p: Parameters, x: Tensor, y: Tensor) -> Parameters:
        moments, everybody = adam_init(p), _everybody(x, y)
        for _ in range(self.steps):
            with torch.enable_grad():
                leaf = Parameters(p.theta.detach().requires_grad_(True), p.inducing.detach().requires_grad_(True))
                own = leaf.theta.view(1, 1, -1), leaf.inducing.unsqueeze(0)
                loss = -collapsed_bound(self.model, *own, everybody, _JITTER).squeeze()
                gradient = Parameters(*torch.autograd.grad(loss, leaf))
            p, moments = adam(Parameters(leaf.theta.detach(), leaf.inducing.detach()), gradient, moments, self.rate)
        return p

    def position(self, message: Server) -> Tensor:
        """Hyper-parameters [D]; inducing inputs lie where the rows do, and the rest follows from both."""
        return message.theta

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> PooledPosterior:
        """Give every client the same GP."""
        return PooledPosterior(self.model, message, batch)


def _everybody(x: Tensor, y: Tensor) -> ClientBatch:
    """Take all rows [R, d], [R] as those of one client."""
    return ClientBatch.pad([(x, y)], ["everybody"], dtype=x.dtype).to(x.device)


RECIPE = Recipe(
    "Pooled GP: one GP on all data, with inducing points when they are many",
    PooledGP,
    MethodSummary("deep-kernel GP", "nothing", "evidence or collapsed bound", "all rows", "nothing"),
    rounds=False,
    search={"method.init_std": STDS, "method.steps": STEPS, **GP_SEARCH},
)

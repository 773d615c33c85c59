"""How likely a federation's personal models make rows that it was not given."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from pacbayes_fl.posteriors.tempered import best as best_temperature
from pacbayes_fl.posteriors.tempered import temper
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.classification import predictive
from pacbayes_fl.study.evaluate.units import raw_scored_rows, scored_rows, units_of

_ERRORS: Final = 10
"""Events that one parameter takes, by the rule of thumb of regressions (Peduzzi et al. 1996)."""

_LEAST: Final = -50.0
"""Log density from which on a row counts no less, in nats: that of an error of ten standard deviations. So does a row
whose likelihood is no number, density or probability."""


def with_noise(predictive: RegressionPredictive, trained: float, noise_std: float) -> RegressionPredictive:
    """Give predictions of a model with Gaussian noise another one: what else is uncertain stays as it is.

    Args:
        predictive: of the model.
        trained: standard deviation of its noise, in the same units.
        noise_std: of the other one.

    Returns:
        A mixture with variances v_p - trained^2 + noise_std^2; the distribution itself where it is no mixture of
        normals.
    """
    if not isinstance(predictive, NormalMixture):
        return predictive
    rest = (predictive.variances - trained**2).clamp_min(0.0)
    return replace(predictive, variances=rest + noise_std**2)


class HeldOutScore:
    """Log likelihoods of the held-out rows of all clients.

    A row of which every candidate is wrong, such as one with a misplaced decimal mark, would decide for all clients:
    log densities of numbers count as -50 nats at least, and likelihoods that are no numbers, as of a client with an
    input of 1e30, as -50 nats. Where those of all rows are none, there is no score.

    Args:
        group: rows to learn from as its training rows, held-out ones as its test rows.
    """

    def __init__(self, group: ScaledGroup) -> None:
        """Begin without any row."""
        self._group, self._labelled = group, not group.train.y.is_floating_point()
        self._log_probs: list[Tensor] = []  # [M, C] of labels, [M] of numbers
        self._y: list[Tensor] = []
        self._weight: list[Tensor] = []  # of a row in the mean over clients
        self._client: list[Tensor] = []  # position of a row's client

    def log_prob(self, posterior: Any, index: Tensor) -> Tensor:
        """Look at the held-out rows of some clients.

        Args:
            posterior: of these clients.
            index: their positions [k].

        Returns:
            Log probabilities of all labels [k, N, C], or log densities [k, N] in units of the client's training rows.
        """
        asked = scored_rows(self._group, index)
        if self._labelled:
            return predictive(posterior, asked.x).log_probs
        return self.log_density(posterior.predict(asked.x), index)

    def log_density(self, predictive: RegressionPredictive, index: Tensor) -> Tensor:
        """Look at the held-out rows of some clients, whose targets are numbers.

        Args:
            predictive: of these rows, in the method's units.
            index: positions of the clients [k].

        Returns:
            Log densities [k, N] in units of the client's training rows.
        """
        own = raw_scored_rows(self._group, index)
        units = units_of(predictive, self._group, index, own.x)
        return units.log_prob(own.y) + self._group.units.y_std[index].log().unsqueeze(-1)

    def add(self, predictive: Tensor, index: Tensor) -> None:
        """Take what `log_prob` has found.

        Args:
            predictive: its result [k, N, C] or [k, N].
            index: positions of the clients [k].
        """
        own = raw_scored_rows(self._group, index)
        weight = own.size.clamp_min(1.0).reciprocal() / self._group.test.clients
        found = predictive[own.mask].double()
        self._log_probs.append(found if self._labelled else found.clamp_min(_LEAST))
        self._y.append(own.y[own.mask])
        self._weight.append(weight.unsqueeze(-1).expand_as(own.mask)[own.mask].to(predictive.device).double())
        self._client.append(index.to(own.mask.device).unsqueeze(-1).expand_as(own.mask)[own.mask].to(predictive.device))

    def by_client(self) -> Tensor:
        """Give every client's mean log likelihood of a held-out row.

        Returns:
            [clients], in nats, without tempering; NaN for those without such rows.
        """
        own, client = self._known(self._of_labels(torch.cat(self._log_probs))), torch.cat(self._client)
        count = torch.bincount(client, minlength=self._group.test.clients)
        return own.new_zeros(len(count)).index_add_(0, client, own) / count

    def below_chance(self) -> dict[str, float]:
        """Find clients whose labels are less likely than under equal probabilities of all classes.

        Returns:
            Mean log likelihood of a held-out row, in nats, by name; nobody where targets are numbers.
        """
        if not self._labelled:
            return {}
        names, means, chance = self._group.test.names, self.by_client(), -math.log(self._log_probs[0].shape[-1])
        return {names[k]: float(means[k]) for k in (means < chance).nonzero()[:, 0].tolist()}

    def score(self, tempering: bool) -> tuple[float, float, float]:
        """Give the mean over clients of the log likelihood of a held-out row.

        Errors say how sure a model may be. Where fewer than ten held-out rows have another label than the likeliest, no
        temperature below 1 is taken: that of rows that are all right is 0.

        Args:
            tempering: look for the best temperature of labels.

        Returns:
            The mean under the best temperature, that temperature, and the mean under 1; in nats.
        """
        log_probs, y, weight = (torch.cat(parts) for parts in (self._log_probs, self._y, self._weight))
        if not self._labelled:
            plain = float((weight * self._known(log_probs)).sum())
            return plain, 1.0, plain

        def likelihood(temperature: float) -> float:
            return float((weight * self._known(self._of_labels(temper(log_probs, temperature)))).sum())

        plain = likelihood(1.0)
        if not tempering or not math.isfinite(plain):
            return plain, 1.0, plain
        rows = ~log_probs.isnan().any(-1)
        result = best_temperature(log_probs[rows], y[rows], weight[rows])
        if int((log_probs.argmax(-1) != y)[rows].sum()) < _ERRORS:
            result = max(result, 1.0)
        return likelihood(result), result, plain

    def _of_labels(self, log_probs: Tensor) -> Tensor:
        """Take the log probability of every row's own label [M]; log densities are given back."""
        if not self._labelled:
            return log_probs
        return log_probs.gather(-1, torch.cat(self._y).long().unsqueeze(-1)).squeeze(-1)

    def _known(self, own: Tensor) -> Tensor:
        """Let likelihoods [M] that are no numbers count as unlikely, but where none is a number."""
        unknown = own.isnan()
        return own if bool(unknown.all()) else own.masked_fill(unknown, _LEAST)

"""Worlds whose truth is known: how often a bound fails there, which must not be more often than it says.

Every world is drawn 2,000 times, and every bound is asked at delta = 0.05. A bound whose true rate of failures is delta
fails more than 149 times with probability below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Binomial

from pacbayes_fl.bounds.bound import Bound, World
from pacbayes_fl.bounds.certificate import Certificate
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.losses import UnboundedLoss
from pacbayes_fl.bounds.pac_pfl import confidence_factor
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.errors import AssumptionError

WORLDS = 2000
DELTA = 0.05
MOST = 149
"""Failures beyond which a bound is wrong, or this is one of a million days."""

_ROWS = 200
_FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs", drawn_clients=True)


class Case(NamedTuple):
    """Values of a bound in all worlds of one kind, and the true risks there.

    Args:
        what: which kind.
        numbers: by the names that bounds take them under, with worlds [W] in the first dimension.
        premises: which hold.
        truth: the risk [] or [W] that is bounded.
    """

    what: str
    numbers: Mapping[str, object]
    premises: Premises
    truth: Tensor


class Coverage(NamedTuple):
    """How often a bound failed in worlds of one kind.

    Args:
        what: which kind.
        failures: among `WORLDS`.
        certificate: of all worlds.
    """

    what: str
    failures: int
    certificate: Certificate


def coverage(bound: Bound, cases: Mapping[World, tuple[Case, ...]] | None = None) -> list[Coverage]:
    """Count in how many worlds the truth is above a bound.

    Args:
        bound: states its world.
        cases: worlds that were drawn before, for several bounds; drawn anew when None.

    Returns:
        The failures among 2,000, for every case of its world.

    Raises:
        AssumptionError: when its certificate is not valid although all premises hold, or it needs a number that its
            world does not have.
    """
    result = []
    for case in DRAWN[bound.world](0) if cases is None else cases[bound.world]:
        certificate = _certified(bound, case, bound.world)
        result.append(Coverage(case.what, int((certificate.value < case.truth).sum()), certificate))
    return result


def _certified(bound: Bound, case: Case, world: str) -> Certificate:
    """Ask a bound in all worlds of one kind."""
    options = {name: value for name, value in bound.example.items() if name not in bound.needs}
    if gaps := [name for name in bound.needs if name not in case.numbers]:
        what = f"the world {world!r} has no {', '.join(gaps)}, which the bound {bound.name!r} needs"
        raise AssumptionError(what, hint=f"it has {', '.join(case.numbers)}")
    numbers = dict(case.numbers)
    if bound.equal_beta:
        numbers["beta"] = torch.as_tensor(numbers["beta"]).max()
    certificate = bound.certify(numbers, DELTA, case.premises, **options)
    if not certificate.valid:
        raise AssumptionError(f"the bound {bound.name!r} is not valid where all premises hold: {certificate}")
    return certificate


def failures_at_any_n(bound: Bound) -> int:
    """Count the worlds in which a bound is below the truth at one of 28 numbers of rows, of the toss of a fair coin.

    These are the powers of 2^(1/3) from 1 to 1024, rounded: of a bound that holds at each alone, few more find nothing.

    Args:
        bound: whose `anytime` says that it holds at all numbers of rows at once; needs risk, kl, n or losses.

    Returns:
        The failures among 2,000.

    Raises:
        AssumptionError: as `coverage`.
    """
    losses = torch.from_numpy(np.random.default_rng((0, 5)).integers(2, size=(WORLDS, 1024)).astype(np.float64))
    failed = torch.zeros(WORLDS, dtype=torch.bool)
    for n in sorted({round(2.0 ** (k / 3)) for k in range(31)}):
        own = losses[:, :n]
        numbers = {"risk": own.mean(1), "kl": torch.zeros(WORLDS), "n": n, "losses": own}
        case = Case(f"{n} rows", numbers, _FINE, torch.tensor(0.5))
        failed |= _certified(bound, case, "rows that keep arriving").value < case.truth
    return int(failed.sum())


def _shares(rows: int, hypotheses: int, seed: int) -> Tensor:
    """Shares of errors [W, H] of hypotheses that toss a fair coin for every row."""
    errors = np.random.default_rng((seed, rows, hypotheses)).binomial(rows, 0.5, (WORLDS, hypotheses))
    return torch.from_numpy(errors / rows)


class Labellings(NamedTuple):
    """The exact Gibbs posterior over all 2^n labellings of n rows, alike beforehand, at any labels: no draw is in it.

    s = 1 / (1 + e^(beta / n)),  KL = n (ln 2 - h(s)),  ln Z = n ln((1 + e^(-beta / n)) / 2)

    Each hypothesis labels every row that there is by the toss of a fair coin, so that the best of all of them fits any
    n rows, and every predictor errs on a half of further ones. What fits has a divergence of ln 2 a row, which a bound
    that leaves it out does not see, however loose it is at risks of a half.

    Args:
        error: chance s of a wrong label, by itself on each of the rows [].
        rows: n.
        beta: temperature.
    """

    error: Tensor
    rows: int
    beta: float

    @property
    def numbers(self) -> dict[str, object]:
        """Numbers of the posterior, alike in all worlds."""
        ratio = self.beta / self.rows
        entropy = -(torch.xlogy(self.error, self.error) + torch.xlogy(1 - self.error, 1 - self.error))
        log_z = self.rows * torch.tensor(math.log1p(math.exp(-ratio)) - math.log(2), dtype=torch.float64)
        known = {
            "risk": self.error,
            "variance": self.error * (1 - self.error) * (1 - 1 / self.rows),
            "kl": self.rows * (math.log(2) - entropy),
            "log_z": log_z,
            "tandem_risk": self.error.square(),
        }
        return {**{name: each.expand(WORLDS) for name, each in known.items()}, "n": self.rows, "beta": self.beta}

    def drawn(self, generator: torch.Generator) -> dict[str, object]:
        """Draw one hypothesis in every world: its share of errors and ln dQ/dP [W]."""
        wrong = torch.full((WORLDS, self.rows), float(self.error), dtype=torch.float64).bernoulli(generator=generator)
        k = wrong.sum(1)
        logs = torch.xlogy(k, self.error) + torch.xlogy(self.rows - k, 1 - self.error)
        return {"risk": k / self.rows, "log_ratio": logs + self.rows * math.log(2)}


def labellings(rows: int, beta: float) -> Labellings:
    """Weigh all labellings of rows.

    Args:
        rows: n.
        beta: temperature, on the share of errors.

    Returns:
        The posterior.
    """
    return Labellings(torch.sigmoid(torch.tensor(-beta / rows, dtype=torch.float64)), rows, beta)


def _every_labelling(rows: int) -> Iterator[Case]:
    """One client, whose hypotheses are all labellings of its rows: nobody has learned who fits them."""
    for beta in (8 * math.sqrt(rows), 20.0 * rows):
        yield Case(f"all labellings, beta {beta:.3g}", labellings(rows, beta).numbers, _FINE, torch.tensor(0.5))


def _fair_coins(seed: int) -> Iterator[Case]:
    """One client, whose hypotheses err by the toss of a fair coin; the posterior is the exact Gibbs posterior."""
    best = math.sqrt(8 * _ROWS * math.log(1 / DELTA))  # beta for one hypothesis
    for hypotheses in (1, 2000):
        risks = _shares(_ROWS, hypotheses, seed)
        for beta in (best, 8 * math.sqrt(_ROWS), 20.0 * _ROWS):
            weights, log_z = gibbs_weights(risks, beta)
            numbers = {"risk": (weights * risks).sum(1), "kl": discrete_kl(weights), "log_z": log_z}
            numbers["variance"] = (weights * risks * (1.0 - risks)).sum(1)
            what = f"{hypotheses} hypotheses, beta {beta:.3g}"
            yield Case(what, {**numbers, "n": _ROWS, "beta": beta}, _FINE, torch.tensor(0.5))
    yield from _every_labelling(_ROWS)


def _rare_losses(seed: int) -> Iterator[Case]:
    """One client, whose hypotheses lose all in few rows, or by a third: often no loss is seen, and no variance."""
    rng = np.random.default_rng((seed, 3))
    for rows, chance, hypotheses in ((60, 0.045, 1), (_ROWS, 0.014, 1), (_ROWS, 0.5, 1), (60, 0.1, 500)):
        lost = rng.multinomial(rows, (chance, 0.1, 0.9 - chance), (WORLDS, hypotheses)) / rows
        shares, thirds = (torch.from_numpy(lost[..., at].copy()) for at in (0, 1))
        risks = shares + thirds / 3
        variances = shares + thirds / 9 - risks.square()
        for beta in (4 * math.sqrt(rows), 20.0 * rows)[: 1 if hypotheses == 1 else 2]:
            weights, log_z = gibbs_weights(risks, beta)
            numbers = {"risk": (weights * risks).sum(1), "variance": (weights * variances).sum(1).clamp_min(0.0)}
            more = {"kl": discrete_kl(weights), "log_z": log_z, "n": rows, "beta": beta}
            what = f"{rows} rows, chance {chance:g}, {hypotheses} hypotheses, beta {beta:.3g}"
            yield Case(what, numbers | more, _FINE, torch.tensor(chance + 0.1 / 3, dtype=torch.float64))
    yield from _every_labelling(_ROWS)


def _unbounded_losses(seed: int) -> Iterator[Case]:
    """One client, whose losses are normal or fall below their mean as exponentials do, with these constants."""
    rng, premises = np.random.default_rng((seed, 4)), replace(_FINE, loss=UnboundedLoss("unbounded loss"))
    for hypotheses in (1, 500):
        for scale, beta in ((0.0, 35.0), (1.0, 20.0), (1.0, 60.0)):
            shape = WORLDS, hypotheses
            below = rng.normal(0, 1, shape) / math.sqrt(_ROWS) if scale == 0 else rng.gamma(_ROWS, 1 / _ROWS, shape) - 1
            risks = torch.from_numpy(-below)
            weights, _ = gibbs_weights(risks, beta)
            numbers = {"risk": (weights * risks).sum(1), "kl": discrete_kl(weights), "n": _ROWS, "beta": beta}
            what = f"{hypotheses} hypotheses, scale {scale:g}, beta {beta:g}"
            yield Case(what, {**numbers, "variance_factor": 1.0, "scale": scale}, premises, torch.tensor(0.0))


def _chains(seed: int) -> Iterator[Case]:
    """50 hypotheses that err by the toss of a fair coin; posteriors after half of 80 rows and after all."""
    rows, hypotheses = 80, 50
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randint(2, (WORLDS, hypotheses, rows), generator=generator, dtype=torch.uint8)
    first, all_rows = errors[..., : rows // 2].sum(-1) / (rows / 2), errors.sum(-1) / rows
    later = errors[..., rows // 2 :].float()
    for before, after, gamma in ((1e-3, 20.0 * rows, 1.0), (4 * math.sqrt(rows), 20.0 * rows, 0.5), (20.0, 20.0, 1.0)):
        p, q = gibbs_weights(first.double(), before)[0], gibbs_weights(all_rows.double(), after)[0]
        drawn = torch.multinomial(
            p, rows // 2, replacement=True, generator=generator
        )  # one for every row, [W, rows / 2]
        wrong = later.gather(1, drawn.unsqueeze(1)).squeeze(1).double()
        missed = torch.einsum("wh,whn->wn", q.float(), later).double().clamp(0.0, 1.0)
        over, under = (1.0 - (1.0 - missed) * wrong).mean(1), (missed * (1.0 - wrong)).mean(1)
        numbers = {"risk": (p * all_rows).sum(1), "shares": torch.stack((over, missed.mean(1), under), -1).unsqueeze(1)}
        numbers |= {"gammas": torch.tensor([gamma]), "counts": torch.tensor([float(rows), rows / 2])}
        numbers["kls"] = torch.stack((discrete_kl(p), discrete_kl(q, p)), -1)
        yield Case(f"beta {before:.3g}, then {after:.3g}, gamma {gamma:g}", numbers, _FINE, torch.tensor(0.5))
    yield _chain_of_labellings(generator, 2 * _ROWS)


def _chain_of_labellings(generator: torch.Generator, rows: int) -> Case:
    """From all labellings alike to those that fit every row; of the first, hypotheses err on a half of all rows."""
    fits = labellings(rows, 20.0 * rows)
    wrong = torch.full((WORLDS, rows // 2), 0.5, dtype=torch.float64).bernoulli(generator=generator).mean(1)
    missed = fits.error.expand(WORLDS)
    shares = torch.stack((1.0 - (1.0 - missed) * wrong, missed, missed * (1.0 - wrong)), -1).unsqueeze(1)
    numbers = {"risk": torch.full((WORLDS,), 0.5, dtype=torch.float64), "shares": shares, "gammas": torch.ones(1)}
    kl = torch.as_tensor(fits.numbers["kl"])
    numbers |= {"counts": torch.tensor([float(rows), rows / 2]), "kls": torch.stack((torch.zeros_like(kl), kl), -1)}
    return Case("all labellings, then those that fit", numbers, _FINE, torch.tensor(0.5))


def _drawn_hypotheses(seed: int) -> Iterator[Case]:
    """100 hypotheses that err by the toss of a fair coin in each of 40 rows: one is drawn, and two, and all vote."""
    rows, hypotheses = 40, 100
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randint(2, (WORLDS, hypotheses, rows), generator=generator, dtype=torch.uint8)
    risks = errors.sum(-1).double() / rows
    for beta in (1e-3, 4 * math.sqrt(rows), 20.0 * rows):
        weights, _ = gibbs_weights(risks, beta)
        which = torch.multinomial(weights, 1, generator=generator)
        ratio = (weights.gather(1, which) * hypotheses).log().squeeze(1)
        share = torch.einsum("wh,whn->wn", weights.float(), errors.float()).double()  # of the posterior that errs
        numbers = {"risk": risks.gather(1, which).squeeze(1), "log_ratio": ratio, "n": rows}
        more = {"tandem_risk": share.square().mean(1).clamp_max(1.0), "kl": discrete_kl(weights)}
        yield Case(f"beta {beta:.3g}", numbers | more, _FINE, torch.tensor(0.5))
    for beta in (4 * math.sqrt(rows), 20.0 * rows):
        every = labellings(rows, beta)
        yield Case(f"all labellings, beta {beta:.3g}", every.numbers | every.drawn(generator), _FINE, torch.tensor(0.5))


def _fixed_predictor(seed: int) -> Iterator[Case]:
    """One predictor, whose errors are tosses of a coin: at these few rows and chances little of delta is left over."""
    for rows, chance in ((_ROWS, 0.5), (60, 0.05), (5, 0.45)):
        errors = np.random.default_rng((seed, rows)).binomial(rows, chance, WORLDS)
        losses = torch.from_numpy((np.arange(rows) < errors[:, None]).astype(np.float64))
        numbers = {"risk": torch.from_numpy(errors / rows), "n": rows, "losses": losses}
        yield Case(f"{rows} rows, chance {chance:g}", numbers, _FINE, torch.tensor(chance, dtype=torch.float64))


def _private_prior(seed: int) -> Iterator[Case]:
    """One of 3,000 point masses, drawn from the rows by the exponential mechanism, eps = 2 tau beta / m; labellings."""
    rows, beta, tau = 100, 48.95, 1.0
    generator, risks = torch.Generator().manual_seed(seed), _shares(rows, 3000, seed)
    chosen = torch.multinomial(torch.softmax(-tau * beta * risks, 1), 1, generator=generator)
    risk = risks.gather(1, chosen).squeeze(1)
    premises = Premises(Provenance("row-level DP", 2 * tau * beta / rows), independent=True, posterior="exact Gibbs")
    numbers = {"risk": risk, "kl": torch.zeros_like(risk), "n": rows, "beta": beta, "log_z": -beta * risk}
    yield Case("one of 3000 priors", numbers, premises, torch.tensor(0.5))
    every = labellings(rows, 8 * math.sqrt(rows))
    premises = replace(premises, prior=Provenance("row-level DP", 1e-3))  # as every prior that saw no rows is
    yield Case("all labellings", every.numbers, premises, torch.tensor(0.5))


class TwoKinds(NamedTuple):
    """A client with rows of two kinds, so that every expectation is a sum.

    Args:
        chances: of the kinds [2].
        losses: of the hypotheses on them [H, 2], in [0, 1].
        prior: of the hypotheses [H].
    """

    chances: Tensor
    losses: Tensor
    prior: Tensor

    def counts(self, m: int) -> Tensor:
        """Probabilities [m + 1] of 0, ..., m rows of the second kind among m."""
        log_chances: Tensor = Binomial(m, self.chances[1]).log_prob(torch.arange(m + 1.0).double())
        return log_chances.exp()

    def energies(self, beta: float, m: int) -> tuple[Tensor, Tensor]:
        """Free energy and true risk of the Gibbs posterior for 0, ..., m rows of the second kind: [m + 1] each."""
        count = torch.arange(m + 1).double().unsqueeze(1)
        risks = ((m - count) * self.losses[:, 0] + count * self.losses[:, 1]) / m
        weights, log_z = gibbs_weights(risks, beta, self.prior)
        return -log_z / beta, weights @ (self.losses @ self.chances)


def _finite_federation(seed: int) -> Iterator[Case]:
    """20 clients of two kinds under four priors on eight hypotheses, and the hyper-posterior of Corollary 4.4."""
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(8, 2, generator=generator, dtype=torch.float64).round()
    losses[0], losses[1] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    priors = torch.softmax(2 * torch.randn(4, 8, generator=generator, dtype=torch.float64), -1)
    n, beta, m = 20, 6.0, torch.tensor([3] * 10 + [6] * 10)
    energies, risks = [], []
    for i, rows in enumerate(m.tolist()):
        chance = torch.tensor((0.3, 0.6)[i % 2], dtype=torch.float64)
        kinds = [TwoKinds(torch.stack((chance, 1 - chance)), losses, prior) for prior in priors]
        drawn = torch.multinomial(kinds[0].counts(rows), WORLDS, replacement=True, generator=generator)
        tables = [kind.energies(beta, rows) for kind in kinds]
        energies.append(torch.stack([energy[drawn] for energy, _ in tables], -1))
        risks.append(torch.stack([risk[drawn] for _, risk in tables], -1))
    energy, risk = torch.stack(energies, 1), torch.stack(risks, 1)  # [W, 20, 4]
    for temper in (n * beta, 20 * n * beta):
        hyper, _ = gibbs_weights(energy.mean(1), temper)
        average = (hyper.unsqueeze(1) * energy).sum(-1)
        numbers = {"free_energy": average, "beta": beta, "m": m, "kl": discrete_kl(hyper), "lam": 10.0}
        yield Case(f"four priors, a hyper-posterior at {temper:g}", numbers, _FINE, (hyper * risk.mean(1)).sum(-1))
    for masses in (1, 500):  # priors, each a point mass on a hypothesis that tosses coins, for ten clients with 20 rows
        lost, tossing = _shares(_ROWS, masses, seed), 10
        for temper in (math.sqrt(8 * _ROWS * math.log(1 / DELTA)), 8 * math.sqrt(_ROWS)):
            weights, _ = gibbs_weights(lost, temper)
            average = (weights * lost).sum(1, keepdim=True).expand(-1, tossing)
            numbers = {"free_energy": average, "beta": temper / tossing, "m": torch.full((tossing,), 20), "lam": 10.0}
            what = f"{masses} point masses, a hyper-posterior at {temper:.3g}"
            yield Case(what, {**numbers, "kl": discrete_kl(weights)}, _FINE, torch.tensor(0.5))
    every = labellings(_ROWS, 20.0 * _ROWS).numbers  # priors, a point mass on each labelling of all clients' rows
    for clients, rows in ((10, 20), (_ROWS, 1)):  # with few clients the theorem as printed is above 1
        energy = torch.as_tensor(every["risk"]).unsqueeze(1).expand(-1, clients)
        numbers = {"free_energy": energy, "beta": 0.4 * rows, "m": torch.full((clients,), rows), "lam": 10.0}
        yield Case(f"all labellings, {clients} clients", {**numbers, "kl": every["kl"]}, _FINE, torch.tensor(0.5))


def _new_clients(seed: int) -> Iterator[Case]:
    """200 clients, each always or never wrong under a hypothesis, and so many rows that only the clients count."""
    n, beta, lam, m = 200, 1.0, 10.0, torch.full((200,), 10.0**6)
    spread = confidence_factor(beta, n, lam)
    for priors in (1, 500):
        lost = _shares(n, priors, seed)
        for temper in (math.sqrt(8 * n * math.log(1 / DELTA)), 20.0 * n):
            weights, _ = gibbs_weights(lost, temper)
            energy = (weights * lost).sum(1, keepdim=True).expand(-1, n)
            log_z = torch.logsumexp(-lost / spread, 1) - math.log(priors)  # at the optimal hyper-posterior
            numbers = {"free_energy": energy, "beta": beta, "m": m, "kl": discrete_kl(weights), "lam": lam}
            what = f"{priors} priors, a hyper-posterior at {temper:.3g}"
            yield Case(what, {**numbers, "log_z": log_z}, _FINE, torch.tensor(0.5))
    lam = 1.1e-4 * math.sqrt(n)  # hardly more than Lemma 4.6 as printed needs, and so tight as it gets
    spread = confidence_factor(float(n), n, lam)
    every = labellings(n, 1.0 / float(spread))  # priors, each another choice of the clients that lose
    energy = every.error.expand(WORLDS, n)
    numbers = {"free_energy": energy, "beta": float(n), "m": m, "lam": lam}
    numbers |= {name: every.numbers[name] for name in ("kl", "log_z")}
    yield Case("all priors", numbers, _FINE, torch.tensor(0.5))


DRAWN: Mapping[World, Callable[[int], Iterator[Case]]] = MappingProxyType(
    {
        "fair coins": _fair_coins,
        "rare losses": _rare_losses,
        "unbounded losses": _unbounded_losses,
        "chains": _chains,
        "drawn hypotheses": _drawn_hypotheses,
        "fixed predictor": _fixed_predictor,
        "private prior": _private_prior,
        "finite federation": _finite_federation,
        "new clients": _new_clients,
    }
)
"""Every world by the name that records of bounds state, drawn from a seed."""

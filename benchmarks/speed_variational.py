"""What federated variational inference costs: all clients at once against one by one, and what Pyro's traces add.

The steps are the recommended preset's (20 minibatches, one step on q each) where a case does not say otherwise. Rounds
and gradients are compared in float64, whatever is timed: Adam makes a whole step of the last bit of a tiny slope.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import SEED, Bench, Rounds, Row, elsewhere, labelled, rise
from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import client_calls, engine, federation_state, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference import elbo, svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.study.evaluate import classification

AGREEMENT, PYRO_AGREEMENT = 1e-9, 1e-12


@dataclass(frozen=True)
class Setting:
    """A network, and clients of `rows` rows that train it on minibatches."""

    sizes: tuple[int, ...]
    clients: int
    rows: int
    minibatch: int

    @property
    def name(self) -> str:
        """The network as it is written in tables."""
        return "-".join(map(str, self.sizes))


SMALL = Setting((60, 20, 10), clients=100, rows=100, minibatch=20)
PAPER = Setting((784, 100, 10), clients=10, rows=250, minibatch=50)


@dataclass(frozen=True)
class Federation:
    """Clients, and pFedBayes as an experiment has it, before the first round."""

    method: PFedBayes
    batch: ClientBatch
    state: FederationState

    @classmethod
    def draw(cls, setting: Setting, bench: Bench, steps: int | None = LocalInference.steps) -> Federation:
        """Draw the clients."""
        generator = torch.Generator().manual_seed(SEED)
        batch = labelled(setting.sizes, setting.clients, setting.rows, bench, generator)
        model = BayesianMLP(setting.sizes, Categorical(setting.sizes[-1]), bench.dtype)
        method = METHODS["pfedbayes"].make(model, steps=steps, minibatch=setting.minibatch)
        if not isinstance(method, PFedBayes):
            raise TypeError("the benchmark measures pFedBayes")
        return cls(method, batch, federation_state.start(method, batch, plan(bench)))

    def calls(self, plan: FederationPlan) -> list[tuple[Tensor, ClientBatch]]:
        """Cut the clients as the engine does: positions and rows of every call."""
        sizes = [int(m) for m in self.batch.size.tolist()]
        parts = client_calls.parts(self.method, sizes, list(range(self.batch.clients)), plan, self.batch.x.device)
        return [(torch.tensor(part).to(self.batch.x.device), self.batch.select(torch.tensor(part))) for part in parts]

    def round(self, calls: Sequence[tuple[Tensor, ClientBatch]], plan: FederationPlan) -> FederationState:
        """Run the clients' and the server's half of a round; always the first one, from the same state."""
        message, updates, states = self.method.broadcast(self.state.server), [], []
        for index, rows in calls:
            noise = Noise(plan.seed, 1, rows.ids, rows.x.device, plan.noise)
            update, after = self.method.client(message, self.state.kept.select(index.tolist()), rows, noise)
            updates.append(self.method.reduce(update))
            states.append(after)
        server = self.method.server(self.state.server, tensors.cat(updates), self.batch.clients)
        return FederationState(server, tensors.cat(states), 1)

    def trained(self, plan: FederationPlan) -> Federation:
        """Pass the first round, so that posteriors differ from each other and from the global distribution."""
        return replace(self, state=self.round(self.calls(plan), plan))


def plan(bench: Bench) -> FederationPlan:
    """Give the engine's plan: as the bundled image studies have it, on CUDA with the noise that is drawn there."""
    return FederationPlan(seed=SEED, noise="philox" if bench.device.type == "cuda" else "generators")


def one_by_one(bench: Bench) -> FederationPlan:
    """Give the plan that hands the method one client at a time."""
    return replace(plan(bench), chunk=1)


def variational(bench: Bench, settings: Sequence[tuple[Setting, str]] | None = None) -> Iterator[Row]:
    """A round of pFedBayes with all clients in the engine's calls, against a loop over the clients."""
    for setting, goal in settings or ((SMALL, ">= 12"), (PAPER, ">= 0.97")):
        _both_rounds(setting, replace(bench, dtype=torch.float64))
        federation = Federation.draw(setting, bench)
        together, alone = (federation.calls(one) for one in (plan(bench), one_by_one(bench)))

        def batched(federation: Federation = federation, calls: Any = together) -> FederationState:
            return federation.round(calls, plan(bench))

        def looped(federation: Federation = federation, calls: Any = alone) -> FederationState:
            return federation.round(calls, one_by_one(bench))

        case = f"pFedBayes round, {setting.name}, {setting.clients} clients / loop over clients"
        yield bench.pair(case, batched, looped, goal)


def _both_rounds(setting: Setting, bench: Bench) -> None:
    """Compare the server's and the clients' states after a round of either kind."""
    federation = Federation.draw(setting, bench)
    states = [federation.round(federation.calls(one), one) for one in (plan(bench), one_by_one(bench))]
    batched, looped = (tensors.leaves({"server": state.server, "clients": state.clients}) for state in states)
    for name, leaf in batched.items():
        bench.same(f"{name} of {setting.name} after a round", leaf, looped[name], AGREEMENT)


def many_clients(bench: Bench, sides: Sequence[tuple[Setting, int, int]] | None = None) -> Iterator[Row]:
    """Whole rounds of the engine with few clients and with many: time per client, and memory kept between rounds.

    The papers' network is measured in float32 alone: 1,000 clients keep 3 GB of it.
    """
    usual = LocalInference.steps
    default = ((SMALL, 10_000, usual), *(((PAPER, 1_000, 2),) if bench.dtype == torch.float32 else ()))
    for setting, many, steps in default if sides is None else sides:
        case = f"{setting.name}, {steps} minibatches, {many} clients / {setting.clients}, {bench.name}"
        crowd, few = ((n, _rounds(replace(setting, clients=n), bench, steps)) for n in (many, setting.clients))
        ours, theirs = (kept_megabytes(side) for side in (crowd, few))
        yield bench.shares(f"a client's share of a round, {case}", crowd, few)
        ratio = theirs / ours
        yield Row(f"kept per client between rounds, {case}", "MB", ours, theirs, ratio, ratio, ratio, "<= 3.5 MB")


def _rounds(setting: Setting, bench: Bench, steps: int, cohort: int | None = None) -> Rounds:
    federation = Federation.draw(setting, bench, steps)
    endless = replace(plan(bench), rounds=10**9, cohort=cohort)
    return engine.rounds(federation.method, federation.batch, endless, federation.state)


def cohorts(
    bench: Bench, setting: Setting = PAPER, many: int = 1_000, drawn: int = 10, steps: int = 4, rounds: int = 400
) -> Iterator[Row]:
    """Rounds of a cohort among many clients of the papers' network, against a federation of as many as are drawn.

    Memory is the peak beyond the data, by client: of rounds in which a hundredth of the clients is drawn, until nearly
    all have taken part; and of two rounds of all of many clients, of which the second can be undone.
    The network is measured in float32 alone, as images have it.
    """
    if bench.dtype != torch.float32:
        return
    sides = [(replace(setting, clients=clients), cohort) for clients, cohort in ((many, drawn), (drawn, None))]
    crowd, few = ((drawn, _rounds(one, bench, steps, cohort)) for one, cohort in sides)
    for _, side in (crowd, few):
        next(side)
    case = f"a cohort of {drawn} of {many} clients / {drawn} clients"
    yield replace(bench.shares(f"a round, {setting.name}, {case}", crowd, few), goal=">= 0.77")
    theirs = kept_megabytes(few)
    for share, clients, times in ((100, many // 5, rounds), (1, many, 2)):
        result = elsewhere("benchmarks.speed_variational", str(clients), str(times), str(share))
        ours = float(result) * 2**20 / 1e6 / clients
        ratio = theirs / ours
        whom = "all" if share == 1 else "a hundredth"
        case = f"peak of rounds of {whom} of {clients} clients, {PAPER.name} / a state"
        yield Row(case, "MB", ours, theirs, ratio, ratio, ratio, "<= 3.6 MB")


def kept_megabytes(side: tuple[int, Rounds]) -> float:
    """Play a round and count the bytes of a client's state.

    Args:
        side: number of clients and their rounds.

    Returns:
        Millions of bytes per client.
    """
    number, rounds = side
    return float(next(rounds)[1].kept.bytes) / number / 1e6


def peak(clients: int, rounds: int, share: int = 100) -> float:
    """Measure by how many MiB memory rises in rounds of a part of the clients.

    Args:
        clients: of the federation.
        rounds: as many as let nearly all of them take part.
        share: one of so many takes part in a round.

    Returns:
        MiB.
    """
    bench = Bench(torch.float32, torch.device("cpu"), 1)
    played = _rounds(replace(PAPER, clients=clients), bench, 1, None if share == 1 else max(1, clients // share))
    return rise(lambda: [next(played)[0] for _ in range(rounds)], bench.device)


def pyro(bench: Bench, settings: Sequence[Setting] = (SMALL, PAPER)) -> Iterator[Row]:
    """One gradient of all clients on the hot path, against Pyro's definition on the same noise: the price of Pyro."""
    for setting in settings:
        _same_gradients(setting, replace(bench, dtype=torch.float64))
        hot, defined = _gradients(setting, bench)
        row = bench.pair(f"one gradient, {setting.name} / Pyro's definition", hot, defined, "-")
        yield replace(row, case=f"{row.case}: Pyro costs {100 * (row.ratio - 1):+.0f} %")


Gradient = Callable[[], elbo.LossGradient[MeanField]]


def _gradients(setting: Setting, bench: Bench) -> tuple[Gradient, Gradient]:
    """Make both ways to differentiate the same bound of all clients, after a first round."""
    federation = Federation.draw(setting, bench).trained(plan(bench))
    method, batch = federation.method, federation.batch
    q, prior = federation.state.clients.q, tensors.expand(federation.state.server.w, batch.clients)
    noise = Noise(SEED, 2, batch.ids, batch.x.device, plan(bench).noise)
    rows, scale = svi.minibatch(method.local, batch, noise, bench.dtype)
    given = (method.model, q, prior, rows, [q.draw(noise)], method.local.weight, scale)
    return lambda: svi.loss_gradient(*given, with_kl=False), lambda: elbo.defined_gradient(*given)


def _same_gradients(setting: Setting, bench: Bench) -> None:
    hot, defined = (tensors.leaves(way().gradient) for way in _gradients(setting, bench))
    for name, leaf in hot.items():
        bench.same(f"slope of {name}, {setting.name}, through Pyro", leaf, defined[name], PYRO_AGREEMENT)


def evaluation(bench: Bench, setting: Setting = PAPER, rows: int = 4_750) -> Iterator[Row]:
    """Predict the test rows of all clients in one pass, averaged over the draws, against one client at a time."""
    federation = Federation.draw(setting, bench, steps=1).trained(plan(bench))
    test = Federation.draw(replace(setting, rows=rows), bench).batch.x

    def probabilities(one: FederationPlan) -> Tensor:
        result = personalisation.personalise(federation.method, federation.state, federation.batch, one)
        return torch.cat([classification.predictive(posterior, test[index]).log_probs for index, posterior in result])

    def together() -> Tensor:
        return probabilities(plan(bench))

    def alone() -> Tensor:
        return probabilities(one_by_one(bench))

    bench.same("log probabilities", together(), alone())
    case = f"prediction, {setting.name}, {setting.clients} clients x {rows} rows, {federation.method.draws} draws"
    yield bench.pair(f"{case} / one by one", together, alone, "-")


CASES: Mapping[str, Callable[[Bench], Iterator[Row]]] = MappingProxyType(
    {
        "variational": variational,
        "many-clients": many_clients,
        "cohorts": cohorts,
        "pyro": pyro,
        "evaluation": evaluation,
    }
)


if __name__ == "__main__":  # see `cohorts`
    torch.set_num_threads(1)
    print(peak(*map(int, sys.argv[1:])))

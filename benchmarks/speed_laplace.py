"""What a FedSI client costs: posterior variances of a subnetwork, and the whole update, against laplace-torch.

The network is the papers' 784-100-10 with 3,925 uncertain weights. The labels are those of the other benchmarks on
networks: random data, for times alone. Updates are compared in float64, whatever is timed: which weights are chosen
hangs on the last bits of their variances.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.measure import SEED, Bench, Row, elsewhere, labelled, rise
from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import curvature, turns
from pacbayes_fl.inference.laplace import choose
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import Candidates, LargestVariance
from pacbayes_fl.methods.fedsi import Client, FedSI, Message, Update
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise

if TYPE_CHECKING:
    from benchmarks.peers_laplace import Peer

AGREEMENT = 1e-8
ROWS = MappingProxyType({250: ">= 4.4", 1_000: "-", 4_500: ">= 12"})
MANY = 1_000
"""Rows from which on a side takes seconds: three pairs are enough."""


@dataclass(frozen=True)
class Setting:
    """A network, and clients of `rows` rows that find a share of its first layers uncertain."""

    sizes: tuple[int, ...] = (784, 100, 10)
    clients: int = 1
    rows: int = 250
    fraction: float = 0.05
    steps: int = 20
    minibatch: int = 50

    @property
    def name(self) -> str:
        """The network and the rows as they are written in tables."""
        return f"{'-'.join(map(str, self.sizes))}, {self.rows} rows"


@dataclass(frozen=True)
class Scene:
    """Clients, and FedSI as an experiment has it, before the first round."""

    method: FedSI
    model: BayesianMLP
    batch: ClientBatch
    message: Message
    state: Client

    @classmethod
    def draw(cls, setting: Setting, bench: Bench) -> Scene:
        """Draw the clients and the server's first means."""
        generator = torch.Generator().manual_seed(SEED)
        batch = labelled(setting.sizes, setting.clients, setting.rows, bench, generator)
        model = BayesianMLP(setting.sizes, Categorical(setting.sizes[-1]), bench.dtype)
        local = LocalDescent(setting.steps, setting.minibatch)
        method = FedSI(model, local, LargestVariance(setting.fraction))
        server = tensors.tree_map(lambda leaf: leaf.to(bench.device), method.init_server(generator))
        message = method.broadcast(server)
        return cls(method, model, batch, message, method.init_clients(message, batch))

    @property
    def theta(self) -> Tensor:
        """Weights of all clients before the first round [K, D]."""
        return tensors.expand(self.message.prior.mean, self.batch.clients)

    @property
    def prior(self) -> Tensor:
        """Prior variances [K, D]."""
        return tensors.expand(self.message.prior.variance, self.batch.clients)

    def noise(self) -> Noise:
        """Give the streams of the first round."""
        return Noise(SEED, 1, self.batch.ids, self.batch.x.device, "generators")

    def chosen(self) -> Tensor:
        """Choose the subnetworks before the first round [K, B]."""
        rule, shared = self.method.choice, self.method.shared
        return choose(rule, self.model, self.theta, self.batch, self.prior, shared, self.noise())[1]

    def variances(self, index: Tensor) -> Tensor:
        """Infer the posterior variances [K, B] of subnetworks, index [K, B]."""
        return curvature.marginal_variance(self.model, self.theta, self.batch, index, self.prior)

    def update(self) -> Update:
        """Run the clients' half of the first round, all at once."""
        return self.method.client(self.message, self.state, self.batch, self.noise())[0]

    def one_by_one(self) -> Update:
        """Run it client by client."""
        updates = []
        for k in range(self.batch.clients):
            at = torch.tensor([k])
            alone = replace(self, batch=self.batch.select(at), state=tensors.select(self.state, at))
            updates.append(alone.update())
        joined: Update = tensors.cat(updates)
        return joined

    def peer(self) -> Peer:
        """Write the first client in `torch.nn`."""
        from benchmarks.peers_laplace import Peer  # takes seconds to import

        return Peer.of(self.model, self.theta[0], self.batch.x[0], self.batch.y[0], self.method.alpha)

    def peer_update(self) -> tuple[Tensor, Tensor]:
        """Do the first client's update by torch's Adam and laplace-torch: means and variances [R]."""
        peer, noise, local, shared = self.peer(), self.noise(), self.method.local, self.method.shared
        rows = [noise.rows(self.batch.mask, local.minibatch)[0] for _ in range(int(turns.counts(local, self.batch)[0]))]
        peer.descend(rows, local.rate, shared)
        index = peer.choose(self.chosen_size, shared)
        return peer.theta[:shared], torch.zeros_like(peer.theta[:shared]).scatter(0, index, peer.variances(index))

    @property
    def chosen_size(self) -> int:
        """Number of uncertain weights of a client, B."""
        every = torch.arange(self.model.dim) < self.method.shared
        return self.method.choice.size(Candidates(*(self.theta,) * 4, every, ~every))


def laplace(bench: Bench, rows: Mapping[int, str] = ROWS, setting: Setting | None = None) -> Iterator[Row]:
    """Posterior variances of a subnetwork, and a client's update, against laplace-torch; memory in own processes."""
    setting = setting or Setting()
    _same_update(replace(setting, rows=min(rows)), replace(bench, dtype=torch.float64))
    for number, goal in rows.items():
        yield from _against(replace(setting, rows=number), bench, goal)


def _against(setting: Setting, bench: Bench, goal: str) -> Iterator[Row]:
    if setting.rows > MANY:
        bench = replace(bench, repeats=min(bench.repeats, 3))
    scene = Scene.draw(setting, bench)
    index, peer = scene.chosen(), scene.peer()

    def ours() -> Tensor:
        return scene.variances(index)[0]

    def theirs() -> Tensor:
        return peer.variances(index[0])

    bench.same(f"posterior variances, {setting.name}", ours(), theirs())
    case = f"variances of {index.shape[1]} weights, {setting.name} / laplace-torch"
    yield bench.pair(case, ours, theirs, goal)
    yield bench.pair(f"FedSI update, {setting.name} / laplace-torch", scene.update, scene.peer_update, "-")
    yield _memory(setting, bench, case)


def _same_update(setting: Setting, bench: Bench) -> None:
    scene = Scene.draw(setting, bench)
    mine, theirs = scene.update().moments, scene.peer_update()
    for name, leaf, other in zip(("means", "variances"), mine, theirs, strict=True):
        bench.same(f"{name} after an update, {setting.name}", leaf[0], other, AGREEMENT)


def _memory(setting: Setting, bench: Bench, case: str) -> Row:
    ours, theirs = (memory_elsewhere(setting, bench, side) for side in ("ours", "theirs"))
    ratio = theirs / ours if ours else float("nan")
    return Row(f"memory, {case}, {bench.name}", "MiB", ours, theirs, ratio, ratio, ratio, "-")


def memory_elsewhere(setting: Setting, bench: Bench, side: str) -> float:
    """Measure one side's peak memory in a process of its own."""
    if bench.device.type == "cuda":
        return memory(setting, bench, side)
    given = [side, str(setting.rows), str(setting.fraction), bench.name, *map(str, setting.sizes)]
    return float(elsewhere("benchmarks.speed_laplace", *given))


def memory(setting: Setting, bench: Bench, side: str) -> float:
    """Measure by how many MiB memory rises while one side infers posterior variances."""
    scene = Scene.draw(setting, bench)
    index = scene.chosen()
    if side == "ours":
        return rise(lambda: scene.variances(index), bench.device)
    peer = scene.peer()
    return rise(lambda: peer.variances(index[0]), bench.device)


def clients(bench: Bench, setting: Setting | None = None) -> Iterator[Row]:
    """Updates of several clients in one call against a loop over them."""
    setting = setting or Setting(clients=10)
    exact = Scene.draw(setting, replace(bench, dtype=torch.float64))
    for name, leaf, other in zip(
        ("means", "variances"), exact.update().moments, exact.one_by_one().moments, strict=True
    ):
        bench.same(f"{name} of all clients, {setting.name}", leaf, other, AGREEMENT)
    scene = Scene.draw(setting, bench)
    case = f"FedSI update, {setting.name}, {setting.clients} clients / loop over clients"
    yield replace(bench, repeats=min(bench.repeats, 3)).pair(case, scene.update, scene.one_by_one, "-")


CASES: Mapping[str, Callable[[Bench], Iterator[Row]]] = MappingProxyType(
    {"laplace": laplace, "laplace-clients": clients}
)


def main(arguments: Sequence[str]) -> None:
    """Print one side's peak memory in MiB: SIDE ROWS FRACTION DTYPE SIZE..."""
    side, rows, fraction, dtype, *sizes = arguments
    torch.set_num_threads(1)
    setting = Setting(tuple(map(int, sizes)), rows=int(rows), fraction=float(fraction))
    print(memory(setting, Bench(getattr(torch, dtype), torch.device("cpu"), repeats=1), side))


if __name__ == "__main__":
    main(sys.argv[1:])

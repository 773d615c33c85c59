"""How fast the hot paths are: `python -m benchmarks.speed [--only CASE] [--json FILE]`.

PAC-PFL stands beside GPyTorch; pFedBayes beside itself one client at a time, and beside its Pyro definition; FedSI
beside laplace-torch.

One thread, and ours and theirs in turn in one process, so that what else the machine does falls on both; what is
reported is the median of paired ratios. The allocator keeps large blocks on both sides: otherwise every large temporary
is given back to the kernel and page-faults anew, which can cost more than the arithmetic. Before anything is timed,
both sides must give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from benchmarks import peers, speed_laplace, speed_studies, speed_variational
from benchmarks.measure import SEED, SETTINGS, Bench, Row, elsewhere, rise, table
from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import client_calls, engine
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.gaussian_process import condition
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.results.rounds import RoundRecord

FEATURES, PARTICLES = 15, 4


@dataclass(frozen=True)
class Federation:
    """Clients, particles and method as an experiment has them."""

    method: PacPFL
    particles: Tensor
    batch: ClientBatch

    @classmethod
    def draw(cls, sizes: Sequence[int], bench: Bench) -> Federation:
        """Draw clients whose targets are smooth functions of some features, with noise."""
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
        y = x[:, :3].sin().sum(1) + 0.3 * torch.randn(len(x), generator=generator, dtype=torch.float64)
        batch = ClientBatch.pad(list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)))
        model = DeepKernelGP(FEATURES)
        prior = GaussianHyperPrior(model.location().to(bench.device, bench.dtype), 0.4)
        particles = prior.sample(PARTICLES, generator)
        return cls(PacPFL(model, prior, PARTICLES), particles, batch.to(bench.device, bench.dtype))

    @property
    def model(self) -> DeepKernelGP:
        """The prior."""
        if not isinstance(self.method.model, DeepKernelGP):
            raise TypeError("the benchmark compares deep-kernel GPs")
        return self.method.model

    def calls(self, plan: FederationPlan) -> list[ClientBatch]:
        """Cut the clients as the engine does."""
        sizes = [int(m) for m in self.batch.size.tolist()]
        parts = client_calls.parts(self.method, sizes, list(range(self.batch.clients)), plan, self.batch.x.device)
        return [self.batch.select(torch.tensor(part)).trim(max(sizes[k] for k in part)) for part in parts]

    def gradient(self, calls: Sequence[ClientBatch]) -> tuple[Tensor, Tensor]:
        """Gradient [P, D] and log evidence [P] summed over clients, by the method's own client function."""
        message, updates = Message(self.particles), []
        for rows in calls:
            update, _ = self.method.client(message, Nothing(), rows, Noise(SEED, 1, rows.ids, self.particles.device))
            updates.append(self.method.reduce(update))
        update = tensors.total(tensors.cat(updates))
        return update.score[0], update.log_evidence[0]


def gradient(bench: Bench, rows: Sequence[int] = (20, 150, 610), clients: int = 24) -> Iterator[Row]:
    """Gradient of all evidences against GPyTorch, batched and in a loop of one ExactGP per client and particle."""
    for m in rows:
        yield from _gradient(bench, m, clients)


def _gradient(bench: Bench, m: int, clients: int) -> Iterator[Row]:
    federation = Federation.draw([m] * clients, bench)
    model, particles, batch = federation.model, federation.particles, federation.batch
    calls = federation.calls(FederationPlan())
    gps = peers.separate_gps(model, particles, batch)

    def ours() -> tuple[Tensor, Tensor]:
        return federation.gradient(calls)

    def whole() -> tuple[Tensor, Tensor]:
        return peers.batched_gradient(model, particles, batch)

    def chunked() -> list[tuple[Tensor, Tensor]]:
        return [peers.batched_gradient(model, particles, rows) for rows in calls]

    def looped() -> Tensor:
        return peers.looped_gradient(gps, PARTICLES)

    (score, value), (peer_score, peer_value) = ours(), whole()
    bench.same(f"gradient at m = {m}", score, peer_score)
    bench.same(f"log evidence at m = {m}", value, peer_value)
    bench.same(f"log evidence in a loop at m = {m}", value, looped())
    last = torch.stack([gp.last_gradient for gp in gps]).unflatten(0, (clients, PARTICLES)).sum(0)
    bench.same(f"gradient in a loop at m = {m}", model.unflatten(score)["kernel.network.weights.2"], last)
    goals = {torch.float64: {150: 2.2, 610: 2.6}, torch.float32: {150: 2.3, 610: 2.9}}[bench.dtype]
    goal = f">= {goals[m]}" if m in goals else "-"
    chunked()  # GPyTorch may take all clients at once or in our chunks, whichever suits it better
    theirs = whole if bench.run(whole) <= bench.run(chunked) else chunked
    yield bench.pair(f"gradient m={m} / GPyTorch batched", ours, theirs, goal)
    goal = ">= 14" if m == 20 and bench.dtype == torch.float32 else "-"
    yield replace(bench, repeats=min(bench.repeats, 3)).pair(f"gradient m={m} / loop of ExactGPs", ours, looped, goal)


def ragged(bench: Bench, clients: int = 96, smallest: int = 47, largest: int = 408) -> Iterator[Row]:
    """Clients of very different sizes in the engine's calls, against every client alone, unpadded."""
    levels = torch.linspace(0.5 / clients, 1 - 0.5 / clients, clients, dtype=torch.float64)
    spread = torch.exp(5.0 + 0.5 * torch.special.ndtri(levels))
    sizes = [int(m) for m in spread.clamp(smallest, largest).round().tolist()]
    federation = Federation.draw(sizes, bench)
    together, alone = (federation.calls(plan) for plan in (FederationPlan(), FederationPlan(waste=1.0, chunk=1)))
    for mine, peer in zip(federation.gradient(together), federation.gradient(alone), strict=True):
        bench.same("ragged gradient", mine, peer)
    padded = sum(rows.clients * rows.mask.shape[1] ** 3 for rows in together) / sum(m**3 for m in sizes)
    case = f"ragged, {clients} clients in {len(together)} calls ({padded:.2f} x N^3) / one by one"
    yield bench.pair(case, lambda: federation.gradient(together), lambda: federation.gradient(alone), ">= 0.77")


def scaling(bench: Bench, few: int = 100, many: int = 10_000, rows: int = 20) -> Iterator[Row]:
    """Whole rounds of the engine with few clients and with many: time per client, and memory beyond the data."""
    case = f"{many} clients / {few}, {bench.name}"
    sides = [(clients, _rounds(bench, clients, rows)) for clients in (many, few)]
    yield bench.shares(f"a client's share of a round, {case}", *sides)
    ours, theirs = (_peak_elsewhere(bench, clients, rows) for clients in (many, few))
    ratio = theirs / ours if ours else float("nan")  # where a round fits into what was free
    yield Row(f"memory that a round takes, {case}", "MiB", ours, theirs, ratio, ratio, ratio, ">= 0.87")


def _rounds(bench: Bench, clients: int, rows: int) -> Iterator[tuple[RoundRecord, FederationState]]:
    """Start a federation and let its first round pass, which cuts the clients into calls."""
    federation = Federation.draw([rows] * clients, bench)
    rounds = engine.rounds(federation.method, federation.batch, FederationPlan(rounds=10**9))
    next(rounds)
    return rounds


def _peak_elsewhere(bench: Bench, clients: int, rows: int) -> float:
    """Peak memory of a round in a process whose allocator gives back what is freed, so that only live tensors count."""
    if bench.device.type == "cuda":
        return peak(bench, clients, rows)
    return float(elsewhere("benchmarks.speed", "--memory", str(clients), str(rows), "--dtype", bench.name))


def peak(bench: Bench, clients: int, rows: int) -> float:
    """Measure by how many MiB memory rises during a round; NaN where the system does not say."""
    rounds = _rounds(bench, clients, rows)
    return rise(lambda: next(rounds), bench.device)


def prediction(bench: Bench, rows: Sequence[int] = (150, 610), points: Sequence[int] = (1, 100)) -> Iterator[Row]:
    """Prediction of one client's posterior, everything cached, against GPyTorch's warm fast predictive."""
    for m in rows:
        for count in points:
            yield _prediction(bench, m, count)


def _prediction(bench: Bench, m: int, count: int) -> Row:
    federation = Federation.draw([m], bench)
    posterior = condition(federation.model, federation.particles.unsqueeze(0), federation.batch)
    gp = peers.joint_gp(federation.model, federation.particles, federation.batch)
    generator = torch.Generator().manual_seed(SEED + 1)
    x = torch.randn(1, count, FEATURES, generator=generator, dtype=torch.float64).to(federation.particles)
    repeated = x[0].expand(PARTICLES, count, FEATURES)

    def ours() -> NormalMixture:
        return posterior.predict(x)

    def theirs() -> tuple[Tensor, Tensor]:
        return peers.predict(gp, repeated)

    bench.same("predictive mean", ours().means[0], theirs()[0])
    bench.same("predictive variance", ours().variances[0], theirs()[1])
    case = f"prediction m={m}, {count} point{'s' * (count > 1)} / GPyTorch fast_pred_var"
    return bench.pair(case, ours, theirs, ">= 4" if count == 1 else "-")


def no_synchronisation(bench: Bench) -> None:
    """Let CUDA raise when the client's or the server's half of a round makes the host wait for the device."""
    for minibatch in (None, 16):
        federation = Federation.draw([40, 33, 20], bench)
        method, batch = replace(federation.method, minibatch=minibatch), federation.batch
        server = method.init_server(torch.Generator().manual_seed(SEED))
        message = method.broadcast(server)
        for mode in ("default", "error"):  # the first time, libraries set themselves up
            noise = Noise(SEED, 1, batch.ids, batch.x.device)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode(mode)
            try:
                update, _ = method.client(message, Nothing(), batch, noise)
                method.server(server, method.reduce(update), batch.clients)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    print("Method.client and Method.server: no host synchronisation")


CASES: Mapping[str, Callable[[Bench], Iterator[Row]]] = MappingProxyType(
    {
        "gradient": gradient,
        "ragged": ragged,
        "scaling": scaling,
        "prediction": prediction,
        **speed_variational.CASES,
        **speed_laplace.CASES,
        **speed_studies.CASES,
    }
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", help="measure this case; may be given again")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="both when not given")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements (default: 7)")
    parser.add_argument("--gpu", action="store_true", help="measure on CUDA, and check that nothing waits for it")
    parser.add_argument("--memory", type=int, nargs=2, help=argparse.SUPPRESS)  # clients and rows; see _peak_elsewhere
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    options = parse(arguments)
    torch.set_num_threads(1)
    measured: list[Row] = []
    for dtype in [getattr(torch, options.dtype)] if options.dtype else [torch.float64, torch.float32]:
        bench = Bench(dtype, torch.device("cuda" if options.gpu else "cpu"), options.repeats)
        if options.memory:
            print(peak(bench, *options.memory))
            return
        if options.gpu:
            no_synchronisation(bench)
        for case in options.only or CASES:
            for row in CASES[case](bench):
                measured.append(row)
                print(table([row]) if len(measured) == 1 else table([row]).splitlines()[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in measured], indent=1) + "\n")


if __name__ == "__main__":
    if not SETTINGS.keys() <= os.environ.keys():  # they are read when a process starts
        os.execve(sys.executable, sys.orig_argv, os.environ | SETTINGS)
    warnings.filterwarnings("ignore", module="gpytorch|linear_operator|laplace")
    main()

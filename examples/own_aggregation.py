"""Your own rule of aggregation: a function of the clients' steps and a record, checked by the laws and run."""

import torch

from pacbayes_fl import BayesianMLP, ClientBatch, FedAvg, FederationPlan, Gaussian, join, run_rounds
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.server.aggregations import AggregationRule
from pacbayes_fl.testing import check_aggregation


def without_farthest(steps, weight, faulty):  # [n, D] and [n], n >= 1, float64, and f -> [D]
    """Mean of the steps without the f that are farthest from the median of every coordinate."""
    far = (steps - steps.median(0).values).abs().amax(1)
    kept = len(steps) - min(faulty, (len(steps) - 1) // 2)
    return steps[far <= far.sort().values[kept - 1]].mean(0)  # ties stay, so that the order of clients has no say


RULE = AggregationRule(
    name="without-farthest",
    title="mean without the f steps that are farthest from the median",
    join=without_farthest,
    weighted=False,  # every client counts once
    robust=True,  # f of 2 f + 1 clients cannot take it anywhere
)
check_aggregation(RULE)  # names every law that the rule breaks

x = 2 * torch.rand(5, 16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
y = torch.sin(3 * x[:, :, 0])
y[4] = 50.0  # of one client the targets are wrong
clients, local = ClientBatch.pad([*zip(x, y, strict=True)]), LocalDescent(rate=0.05, optimiser="sgd")
method = FedAvg(BayesianMLP((1, 8, 1), Gaussian(), torch.float64), local, weighting="uniform")
for rule in ("mean", RULE):
    plan = FederationPlan(rounds=40, aggregate=rule, diverges_at=None)
    posterior = join(method, run_rounds(method, clients, plan).server, clients, seed=0)
    error = (posterior.predict(clients.x).mean - y)[:4].square().mean().sqrt()
    print(getattr(rule, "name", rule), "RMSE of the others", round(error.item(), 2))
# a study takes it from a file by `[federation] aggregate = "mine.py:RULE"`

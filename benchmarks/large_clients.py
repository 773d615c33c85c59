"""Gaussian processes of clients with many rows: inducing points against the exact evidence, and a year of 24 houses.

    python -m benchmarks.large_clients accuracy --rows 610 --houses 6 --rounds 30
    python -m benchmarks.large_clients year --rounds 3

Rows are hours of a typical year of simulated PV houses (`data_gen`), nights included; lags reach around the year's end.
The second command says CPU seconds a round, which other programs on the machine do not change much, and seconds by the
clock, which `--threads` makes fewer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from data_gen import features, pv_series, weather
from data_gen.pv import station_beam
from data_gen.pv_series import PVConfig
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.linear_start import linear_moments, pooled_ridge
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.noise import Noise

TEST = 1000
"""Hours of each house that are predicted."""


class Year(NamedTuple):
    """Hours of houses, standardised by those that train: rows that train, and others."""

    train: ClientBatch
    test: ClientBatch


class Scored(NamedTuple):
    """What a way of knowing rows costs and gives: CPU seconds of a round, and averages over houses."""

    seconds: float
    rsmse: float
    nlpd: float


def year_of(houses: int, rows: int | None, seed: int = 0) -> Year:
    """Simulate a year of houses.

    Args:
        houses: their number.
        rows: hours of each that train, drawn without replacement; all of the year when None.
        seed: of the hours.

    Returns:
        The rows that train, and `TEST` others (of the same hours, where all train).
    """
    config = PVConfig(kind="ew", clients=houses, new_clients=0, samples=1, mode="physical", weather="typical")
    station = weather.load("typical", years=(2018, 2019), place=(config.latitude, config.longitude))
    beam = np.roll(station_beam(config, station), 1)
    random, made = np.random.default_rng(seed), []
    for one in pv_series.physical(config, station, station.utc_offset, config.seed, houses):
        lags = [np.roll(one.power, lag) for lag in features.LAGS]
        x = np.stack([station.height, one.temperature, one.wind, beam, *lags], 1)
        order = random.permutation(len(x))
        count = len(x) if rows is None else rows
        train, test = order[:count], order[-TEST:]
        x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-8)
        y = (one.power - one.power[train].mean()) / (one.power[train].std() + 1e-8)
        made.append([(torch.from_numpy(x[at]), torch.from_numpy(y[at])) for at in (train, test)])
    return Year(*(ClientBatch.pad([house[part] for house in made]) for part in range(2)))


def method_of(year: Year, rule: Inducing | None) -> PacPFL:
    """Make PAC-PFL as it is by default on a file of one's own, with a noise network."""
    start = pooled_ridge(linear_moments(year.train))
    model = DeepKernelGP(year.train.x.shape[2], linear=start, noise_widths=(16,), linear_kernel=True)
    return PacPFL(model.with_inducing(rule))


def scored(year: Year, rule: Inducing | None, rounds: int, predict: bool = True) -> Scored:
    """Train, and predict the other rows.

    Args:
        year: rows.
        rule: inducing points; None for exact posteriors.
        rounds: of PAC-PFL.
        predict: whether anything is predicted.

    Returns:
        Seconds and scores; NaN without predictions.
    """
    method, begun = method_of(year, rule), time.process_time()
    state = engine.run_rounds(method, year.train, FederationPlan(rounds=rounds))
    seconds = (time.process_time() - begun) / rounds
    if not predict:
        return Scored(seconds, float("nan"), float("nan"))
    errors, nlpd = [], []
    for k in range(year.train.clients):
        own, asked = (part.select(torch.tensor([k])).trim() for part in year)
        message = Message(state.server.particles)
        found = method.personalise(message, Nothing(), own, Noise(0, 0, own.ids)).predict(asked.x)
        errors.append(float((found.mean - asked.y).square().mean().sqrt()))
        nlpd.append(-float(found.log_prob(asked.y).mean()))
    return Scored(seconds, float(np.mean(errors)), float(np.mean(nlpd)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "year"))
    parser.add_argument("--rows", type=int, default=610)
    parser.add_argument("--houses", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, nargs="*", default=[25, 50, 100, 200])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="that share the work (default: 1)")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    if asked.what == "year":
        year = year_of(asked.houses, None, asked.seed)
        for points in asked.points:
            begun = time.perf_counter()
            seconds = scored(year, Inducing(points), asked.rounds, predict=False).seconds
            clock = (time.perf_counter() - begun) / asked.rounds
            print(f"| {asked.houses} | {year.train.x.shape[1]} | {points} | {seconds:.2f} | {clock:.2f} |", flush=True)
        return
    year = year_of(asked.houses, asked.rows, asked.seed)
    rules = [Inducing(points) for points in asked.points]
    for rule in (*rules, None):
        found = scored(year, rule, asked.rounds)
        name = "exact" if rule is None else str(rule.points)
        print(f"| {asked.rows} | {name} | {found.rsmse:.4f} | {found.nlpd:.4f} | {found.seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()

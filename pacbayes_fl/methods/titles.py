"""What each method is, in a line for people; apart from the recipes, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "pac-pfl": "PAC-PFL: a hyper-posterior over GP priors by federated SVGD",
        "pfedgp": "pFedGP for regression: one particle, flat hyper-prior",
        "vanilla-gp": "Vanilla GP: each client alone",
        "pooled-gp": "Pooled GP: one GP on all data, with inducing points when they are many",
        "ridge": "Ridge regression of each client alone (scikit-learn)",
        "pooled-ridge": "One ridge regression on all data (scikit-learn)",
        "persistence": "Persistence: the last known value of a series",
        "pfedbayes": "pFedBayes: the prior of every client is the learned global distribution",
        "sfedbayes": "sFedBayes: pFedBayes with weights that are exactly zero or Gaussian",
        "cfedbayes": "cFedBayes: several global distributions, of which every client takes the likeliest",
        "bpfed": "BPFed: shared and personal uncertain layers, priors that go on from round to round",
        "fedavg": "FedAvg: one network for all, averaged",
        "fedavg-ft": "FedAvg-FT: FedAvg, fine-tuned on each client's rows",
        "local": "Local-only: each client trains its own network",
        "fedsi": "FedSI: full-covariance Laplace on a subnetwork, the other weights point estimates",
        "fedsi-fac": "FedSI-Fac: diagonal Laplace on the whole representation",
        "pac-pfl-bnn": "PAC-PFL on networks: a hyper-posterior over priors of the weights by federated SVGD",
    }
)
"""Titles by the name of the method, in the order of `METHODS`."""

"""Bayesian personalised federated learning.

Many clients with little, different data each learn a model of their own with help from the others.

Names are loaded when they are first used, so that importing the package runs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pacbayes_fl import bounds as bounds
    from pacbayes_fl import metrics as metrics
    from pacbayes_fl import plots as plots
    from pacbayes_fl.data.batch import ClientBatch as ClientBatch
    from pacbayes_fl.errors import PacBayesFLError as PacBayesFLError
    from pacbayes_fl.federation.engine import run_rounds as run_rounds
    from pacbayes_fl.federation.personalisation import join as join
    from pacbayes_fl.federation.plan import FederationPlan as FederationPlan
    from pacbayes_fl.methods import METHODS as METHODS
    from pacbayes_fl.methods.baselines.fedavg import FedAvg as FedAvg
    from pacbayes_fl.methods.baselines.local import LocalOnly as LocalOnly
    from pacbayes_fl.methods.baselines.pfedgp import pfedgp as pfedgp
    from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP as VanillaGP
    from pacbayes_fl.methods.fedsi import FedSI as FedSI
    from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN as PacPFLBNN
    from pacbayes_fl.methods.pac_pfl.gp import PacPFL as PacPFL
    from pacbayes_fl.methods.variational.bpfed import BPFed as BPFed
    from pacbayes_fl.methods.variational.cfedbayes import CFedBayes as CFedBayes
    from pacbayes_fl.methods.variational.pfedbayes import PFedBayes as PFedBayes
    from pacbayes_fl.methods.variational.sfedbayes import SFedBayes as SFedBayes
    from pacbayes_fl.models.base import WeightModel as WeightModel
    from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP as DeepKernelGP
    from pacbayes_fl.models.functions.deep_kernel_gp import GPyTorchPrior as GPyTorchPrior
    from pacbayes_fl.models.likelihoods import Categorical as Categorical
    from pacbayes_fl.models.likelihoods import Gaussian as Gaussian
    from pacbayes_fl.models.weights.bayesian_network import BayesianMLP as BayesianMLP
    from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork as BayesianNetwork
    from pacbayes_fl.models.weights.convolutional import BayesianCNN as BayesianCNN
    from pacbayes_fl.models.weights.convolutional import BayesianVGG as BayesianVGG
    from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior as GaussianHyperPrior
    from pacbayes_fl.results.records import Result as Result
    from pacbayes_fl.study.file import Study as Study
    from pacbayes_fl.study.run import run as run

_HOMES = (
    ("data.batch", ("ClientBatch",)),
    ("errors", ("PacBayesFLError",)),
    ("federation.engine", ("run_rounds",)),
    ("federation.personalisation", ("join",)),
    ("federation.plan", ("FederationPlan",)),
    ("methods", ("METHODS",)),
    ("methods.baselines.fedavg", ("FedAvg",)),
    ("methods.baselines.local", ("LocalOnly",)),
    ("methods.baselines.pfedgp", ("pfedgp",)),
    ("methods.baselines.vanilla_gp", ("VanillaGP",)),
    ("methods.variational.bpfed", ("BPFed",)),
    ("methods.variational.cfedbayes", ("CFedBayes",)),
    ("methods.fedsi", ("FedSI",)),
    ("methods.pac_pfl.gp", ("PacPFL",)),
    ("methods.pac_pfl.bnn", ("PacPFLBNN",)),
    ("methods.variational.pfedbayes", ("PFedBayes",)),
    ("methods.variational.sfedbayes", ("SFedBayes",)),
    ("models.base", ("WeightModel",)),
    ("models.weights.bayesian_network", ("BayesianMLP", "BayesianNetwork")),
    ("models.weights.convolutional", ("BayesianCNN", "BayesianVGG")),
    ("models.functions.deep_kernel_gp", ("DeepKernelGP", "GPyTorchPrior")),
    ("models.likelihoods", ("Categorical", "Gaussian")),
    ("posteriors.hyper_posterior", ("GaussianHyperPrior",)),
    ("results.records", ("Result",)),
    ("study.run", ("run",)),
    ("study.file", ("Study",)),
)

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "BPFed",
    "BayesianCNN",
    "BayesianMLP",
    "BayesianNetwork",
    "BayesianVGG",
    "CFedBayes",
    "Categorical",
    "ClientBatch",
    "DeepKernelGP",
    "FedAvg",
    "FedSI",
    "FederationPlan",
    "GPyTorchPrior",
    "Gaussian",
    "GaussianHyperPrior",
    "LocalOnly",
    "PFedBayes",
    "PacBayesFLError",
    "PacPFL",
    "PacPFLBNN",
    "Result",
    "SFedBayes",
    "Study",
    "VanillaGP",
    "WeightModel",
    "bounds",
    "join",
    "metrics",
    "pfedgp",
    "plots",
    "run",
    "run_rounds",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name in ("bounds", "metrics", "plots"):
        return import_module(f"pacbayes_fl.{name}")
    for home, names in _HOMES:
        if name in names:
            return getattr(import_module(f"pacbayes_fl.{home}"), name)
    raise AttributeError(f"module 'pacbayes_fl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)

# The public names of the package, which `__init__.py` reads: a line here is all that a new one needs.

from pacbayes_fl import bounds as bounds
from pacbayes_fl import metrics as metrics
from pacbayes_fl import plots as plots
from pacbayes_fl.certificates.clients import certify as certify
from pacbayes_fl.certificates.request import Request as Request
from pacbayes_fl.data.batch import ClientBatch as ClientBatch
from pacbayes_fl.errors import PacBayesFLError as PacBayesFLError
from pacbayes_fl.federation.engine import run_rounds as run_rounds
from pacbayes_fl.federation.personalisation import join as join
from pacbayes_fl.federation.plan import FederationPlan as FederationPlan
from pacbayes_fl.methods import METHODS as METHODS
from pacbayes_fl.methods.base import Method as Method
from pacbayes_fl.methods.baselines.fedavg import FedAvg as FedAvg
from pacbayes_fl.methods.baselines.fedprox import FedProx as FedProx
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
from pacbayes_fl.metrics import Metric as Metric
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
from pacbayes_fl.study.compare import compare as compare
from pacbayes_fl.study.file import Study as Study
from pacbayes_fl.study.predict import predict as predict
from pacbayes_fl.study.run import open_run as open_run
from pacbayes_fl.study.run import run as run
from pacbayes_fl.study.search.tune import tune as tune

__version__: str

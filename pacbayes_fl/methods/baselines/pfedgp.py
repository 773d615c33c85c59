"""pFedGP for regression: one shared deep kernel, learned by the server's Adam on the clients' summed log evidence.

Achituve et al. (2021), in the adaptation of PAC-PFL section 8.6.2: "a special case of our algorithm when using a single
prior in SVGD and a very wide hyper-prior", with a zero mean (as originally) or a network mean, which the model decides.
"""

from __future__ import annotations

from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.posteriors.hyper_posterior import FlatHyperPrior


def pfedgp(model: FunctionModel, init_std: float = 0.3, rate: float = 1e-2, minibatch: int | None = None) -> PacPFL:
    """Build pFedGP from PAC-PFL's parts: one particle, flat hyper-prior; tau is then but a scale, and 1.

    Args:
        model: prior with hyper-parameters theta.
        init_std: spread of the initial draw of theta.
        rate: learning rate of the server's Adam.
        minibatch: rows per client and round, whose own evidence is ascended; all when None.

    Returns:
        The method.
    """
    hyper_prior = FlatHyperPrior(model.location(), init_std)
    return PacPFL(model, hyper_prior, particles=1, tau=1.0, rate=rate, minibatch=minibatch, minibatch_scale="none")

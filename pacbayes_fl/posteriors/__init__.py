"""Posteriors: predictive distributions, and divergences from priors for bounds."""

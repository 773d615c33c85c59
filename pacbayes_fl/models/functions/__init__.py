"""Priors over functions: Gaussian processes."""

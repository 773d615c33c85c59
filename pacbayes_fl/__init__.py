"""Bayesian personalised federated learning with certificates."""

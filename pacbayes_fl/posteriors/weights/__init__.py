"""Posteriors over the weights of a network."""

"""Posteriors over functions."""

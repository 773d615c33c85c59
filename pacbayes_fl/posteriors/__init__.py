"""Posteriors: what predicts, and what a bound can measure against a prior."""

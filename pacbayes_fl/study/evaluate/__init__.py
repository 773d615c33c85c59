"""Scores of a trained federation on every group of clients."""

"""Rows of clients: batches, scaling, splits and tables."""

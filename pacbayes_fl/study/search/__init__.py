"""Choosing among values: by held-out rows, and by tuning."""

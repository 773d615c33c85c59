"""Baselines that the papers compare with, built on the same parts."""

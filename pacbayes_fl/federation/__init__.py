"""Rounds: cohorts, the engine on one device, checkpoints, and a round as a network sees it."""

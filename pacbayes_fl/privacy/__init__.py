"""Differential privacy of what clients send: mechanisms, their account, and a ledger that outlives a crash."""

"""Differential privacy of clients' updates: mechanisms, accounting, and a crash-safe ledger."""

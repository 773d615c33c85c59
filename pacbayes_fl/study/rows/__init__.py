"""Rows of a study's clients: scaled, known again by fingerprints, and kept for certificates."""

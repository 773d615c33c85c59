"""Uses of a finished run: predictions, scores, rows that came later, and releases of its model."""

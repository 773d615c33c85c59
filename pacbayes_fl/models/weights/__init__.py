"""Networks as programs over their weights."""

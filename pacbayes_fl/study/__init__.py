"""Studies: their files, data, preparation, search, runs and readers of runs."""

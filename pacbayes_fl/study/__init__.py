"""Studies: their files, data, preparation, search, runs and what is read from runs."""

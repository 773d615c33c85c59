"""Results of a run: records, folder, manifest, certificates and comparisons."""

"""What a run leaves: records, folder, manifest, certificates and comparisons."""

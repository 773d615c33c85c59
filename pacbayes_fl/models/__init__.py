"""Models: priors over functions as GPyTorch modules with explicit hyper-parameters."""

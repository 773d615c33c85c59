"""PAC-PFL: hyper-posteriors over priors by federated SVGD."""

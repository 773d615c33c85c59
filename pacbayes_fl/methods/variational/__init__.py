"""Methods whose clients fit distributions over the weights of a network."""

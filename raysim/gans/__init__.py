"""GANs that clients train before the first round: the training itself, each client its own, or one for all."""

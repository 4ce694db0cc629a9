"""Memory needed for training, without the machine: ``checkmate.torch.fit`` and ``checkmate fit``."""

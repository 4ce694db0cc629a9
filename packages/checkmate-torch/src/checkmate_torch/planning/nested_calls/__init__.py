"""Several planned calls in one training step: the nest that they form, and one budget for all of them."""

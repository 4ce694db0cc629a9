"""``python -m checkmate_torch.selfcheck``: whether Checkmate works on this machine and device.

It needs PyTorch and the core package, no network and no test framework. Each slice of the checks runs in a
process of its own, so that a crash ends one slice only.
"""

"""Callbacks for the training loops of other libraries, each in a module that needs its library.

:mod:`checkmate_torch.callbacks.transformers` is for Hugging Face's ``Trainer``,
:mod:`checkmate_torch.callbacks.lightning` for PyTorch Lightning's ``Trainer``.
"""

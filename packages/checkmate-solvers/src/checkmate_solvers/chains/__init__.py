"""Chains: their structure, their bound, revolve for equal layers, a dynamic programme for unequal ones."""

from checkmate_solvers.chains.dynamic import ChainDP
from checkmate_solvers.chains.revolve import Revolve
from checkmate_solvers.chains.structure import Chain, recognise

__all__ = ["Chain", "ChainDP", "Revolve", "recognise"]

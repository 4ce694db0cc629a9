"""Chains: what they are, the binomial schedules of revolve, and a dynamic programme for unequal layers."""

from checkmate_solvers.chains.dynamic import ChainDP
from checkmate_solvers.chains.revolve import Revolve
from checkmate_solvers.chains.structure import Chain, NoChain, recognise

__all__ = ["Chain", "ChainDP", "NoChain", "Revolve", "recognise"]

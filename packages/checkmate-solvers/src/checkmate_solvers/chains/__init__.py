"""Chains: their structure, the binomial schedules of revolve, a dynamic programme for unequal layers."""

from checkmate_solvers.chains.dynamic import ChainDP
from checkmate_solvers.chains.revolve import Revolve
from checkmate_solvers.chains.structure import Chain, NoChain, recognise

__all__ = ["Chain", "ChainDP", "NoChain", "Revolve", "recognise"]

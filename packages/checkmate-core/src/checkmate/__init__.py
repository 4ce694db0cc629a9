"""Checkmate: train within a byte budget, by optimal tensor rematerialization."""

"""Checkmate for torch."""

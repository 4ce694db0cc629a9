"""Deliberate faults: hostile files, failing writes, kills, broken imports, forged cache entries.

Each module defines classes of faults: it makes them from a seed, and each fault reports the harm it did.
"""

"""Faults on purpose: hostile files, writes that fail, kills, broken imports, forged cache entries.

Each module is a class of faults or more: it makes them from a seed, and each says what went wrong.
"""

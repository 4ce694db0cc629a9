"""Solvers side by side on many graphs: ``run.py`` is the command, ``records`` what it leaves behind.

Each solve is ``attempt.py`` in a process of its own, which imports nothing else from here.
"""

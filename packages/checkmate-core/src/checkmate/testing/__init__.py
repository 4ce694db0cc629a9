"""For tests of plugins and our own: Hypothesis strategies (extra ``checkmate-core[testing]``)."""

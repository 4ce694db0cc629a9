"""From a captured function to a planned step: trace, price, decide within the budget, emit, record."""

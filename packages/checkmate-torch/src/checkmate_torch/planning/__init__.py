"""From a captured model to a planned step: trace, price, decide within the budget, emit, record."""

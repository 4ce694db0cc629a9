"""From a function to a planned step: capture, trace, price, decide within the budget, emit, record."""

"""Which bytes a step holds, and when: the account, residency, the plain executor, the allocator."""

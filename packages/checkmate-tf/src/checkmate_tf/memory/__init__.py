"""Which bytes a step holds, and when: the account of a plan, the plain executor, the allocator."""

"""Which bytes a step holds, and when: the account of a plan, the peak of the plain step, snapshots."""

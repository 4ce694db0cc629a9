"""What a training step is and how it may run: graphs, schedules, plans; no framework, no budget."""

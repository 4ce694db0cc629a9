"""The data: graphs of training steps, schedules and plans; no framework, no budget."""

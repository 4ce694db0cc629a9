"""What stands on the finished interface: memory tables, largest batches, the demonstration, commands."""

"""Models that ``fully_shard`` has sharded: one budget for each rank's whole step."""

"""What users run on top of the API: memory tables (``fit``), largest batches, the demonstration."""

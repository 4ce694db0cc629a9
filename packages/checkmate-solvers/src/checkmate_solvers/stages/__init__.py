"""Programs in stages: what each stage computes (R), and what is retained into it (S)."""

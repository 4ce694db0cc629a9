"""Pictures and tables of judged schedules; each needs its own extra."""

"""What goes to disk and between processes: wire formats, checked answers, the cache."""

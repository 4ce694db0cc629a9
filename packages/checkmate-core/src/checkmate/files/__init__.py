"""Files and messages between processes: wire formats, answers as bytes, the cache."""

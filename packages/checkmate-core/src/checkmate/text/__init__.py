"""Text that people read: printable strings, HTML, log lines."""

"""The built-in commands."""

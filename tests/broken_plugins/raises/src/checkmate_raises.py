"""A plugin that can't be imported."""

raise RuntimeError("this plugin is broken\non purpose")

"""The conformance kit: subclass, name the plugin or override one method, and pytest runs all its laws."""

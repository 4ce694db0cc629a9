"""All classes of faults, in the order of the table."""

from __future__ import annotations

from faults import cache, files, imports, kills, writes

__all__ = ["CLASSES"]

CLASSES = (*files.CLASSES, *writes.CLASSES, *cache.CLASSES, *imports.CLASSES, *kills.CLASSES)

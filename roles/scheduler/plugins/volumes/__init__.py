"""Volumes: binding, attach limits, zones, conflicts (SCH-KS-09)."""

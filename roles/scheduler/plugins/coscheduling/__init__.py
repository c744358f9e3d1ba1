"""Coscheduling: pods of a gang are placed together or not at all (SCH-GANG-01..10)."""

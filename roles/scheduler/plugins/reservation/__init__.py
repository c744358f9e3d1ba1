"""Reservations: resources held for pods to come (SCH-RSV-01..17, docs/scheduler-reservations.md)."""

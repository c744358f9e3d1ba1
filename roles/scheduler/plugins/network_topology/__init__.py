"""The network tree, and placing gangs along it (SCH-NT-01..03)."""

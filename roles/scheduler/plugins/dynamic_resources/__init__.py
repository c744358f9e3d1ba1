"""Dynamic resource allocation: claims, device classes, slices (SCH-DRA)."""

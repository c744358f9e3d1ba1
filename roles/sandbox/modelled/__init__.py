"""The demo's phases on a node that is calculated: where this machine cannot be measured, the same story on virtual time."""

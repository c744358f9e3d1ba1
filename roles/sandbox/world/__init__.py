"""A whole cluster on one event loop and virtual time, repeatable from a seed."""

"""Planted defects: each puts one mistake into the product of a process, to see whether a world betrays it.

They are made by replacing a function in a child process, never in a product that runs. What they replace is looked up by name, so that a
function that moved is an error here and not a mutant that does nothing.
"""

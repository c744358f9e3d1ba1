"""NodeNUMAResource: CPUs and NUMA amounts for pods (scheduler-node.md 4)."""

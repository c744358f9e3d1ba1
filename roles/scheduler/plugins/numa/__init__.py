"""NodeNUMAResource: CPUs and NUMA amounts for pods."""

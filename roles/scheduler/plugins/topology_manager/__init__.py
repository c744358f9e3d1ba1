"""Which NUMA nodes of a machine a pod is to be on, agreed between the plugins that hand out what is tied to them."""

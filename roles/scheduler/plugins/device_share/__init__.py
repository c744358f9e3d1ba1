"""DeviceShare: which devices of a node a pod gets, whole, in fractions, and near one another."""

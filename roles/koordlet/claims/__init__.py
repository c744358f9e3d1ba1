"""Devices that claims got, on the node: the kubelet's plugin of driver koordinator.sh."""

"""Devices of nodes as ResourceSlices. Decides; the controller acts."""

"""Cluster: the nodes, the workers, and who leads."""

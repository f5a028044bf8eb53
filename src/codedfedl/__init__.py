"""Straggler-proof federated learning at the edge."""

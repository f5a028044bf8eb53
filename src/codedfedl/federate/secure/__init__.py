"""Secure sums: a node's vault, the helper, and the server's side."""

"""The server of a federation: it asks, waits, checks and judges."""

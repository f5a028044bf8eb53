"""Fleets from measured times."""

"""A node of a federation: it answers, and limits what leaves it."""

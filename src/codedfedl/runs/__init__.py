"""Run directories: what a run was, what happened in it, and how to continue it."""

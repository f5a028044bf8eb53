"""The virtual clock: sampled delays, and nothing sleeps."""

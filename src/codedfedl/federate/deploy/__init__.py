"""Who may connect: keys, the registry, the gate; and a federation of processes on one machine."""

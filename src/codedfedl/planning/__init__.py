"""Plans: how long the server waits, who does how much, and how much parity there is."""

"""Audits: what an attacker learns about records from what a server received.

| file | what it says |
| --- | --- |
| `records` | records that a coin flip includes: crafted canaries, and real records |
| `messages` | what a server received, and what each record contributes to it |
| `attacks` | membership scores, by an attacker who knows all else or only the population |
| `lower_bound` | one run with coins, its scores, and the lower bound on ε that they prove |

The statistics are in `audit.lower_bound`.
"""

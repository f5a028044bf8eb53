"""Audits: what an attacker learns about records from what a server received.

| file | what it says |
| --- | --- |
| `records` | records with a coin of their own: crafted canaries, and real records |
| `messages` | what a server received, and by which part each record adds to it |
| `attacks` | scores of records, by who knows all else, or only the population |
| `run` | one run with coins, its scores, and what they prove of ε |

The statistics are in `privacy.auditing`.
"""

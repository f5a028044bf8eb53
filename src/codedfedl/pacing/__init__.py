"""Deadlines, loads and weights for other people's training loops: arrivals in, a deadline out.

The core needs NumPy alone, and no engine. `codedfedl.pacing.flower` paces a Flower app in one line.
"""

from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.rounds import Answer, Plan, Round

__all__ = ["Answer", "Pacer", "Plan", "Round"]

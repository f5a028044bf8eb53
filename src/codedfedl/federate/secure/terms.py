"""What the sums of a federation spend: those of an account, μ² each; those without noise, nothing.

Both kinds of terms answer the same questions: which contract, which number, what was spent.
"""

import json
import math
from collections import Counter
from dataclasses import replace

from codedfedl.core.clipped import PrivateSum
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Ask
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.privacy.accounting import ADJACENCY, Account, Release
from codedfedl.privacy.contract import Contract
from codedfedl.privacy.fixed_point import LEAST_SUMMED
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells

__all__ = ["Noisy", "Plain", "keep_account"]

_HOLDS = (
    "against the server, the clients and the public, while server and helper do not collude; "
    "not against a helper that also sees the models: it knows the noise"
)
_HOLDS_BY_SHARES = "against those named by the run: each client adds a share of the noise"


def keep_account(directory: RunDirectory, experiment: Experiment, account: Account) -> None:
    """Write `privacy.json` before the first round; refuse to continue a run under another one."""
    (cell,) = cells(experiment)
    which = {"cell": cell.id, "setting": cell.label, "seed": experiment.seeds[0]}
    holds = _HOLDS_BY_SHARES if account.shares else _HOLDS
    document = {"holds": holds, "runs": [which | account.document()]}
    text, path = json.dumps(document, indent=2) + "\n", directory.path / "privacy.json"
    if path.is_file() and path.read_text("utf-8") != text:
        raise InputError(
            f"{path} says what this run gives away, and it was planned otherwise now: resume it "
            "with its own federation.rounds, or choose another --out"
        )
    directory.write_text("privacy.json", text)


class Plain:
    """Sums without noise: numbered as they are asked for, with no budget to spend.

    Attributes
    ----------
    spent
        μ² of all sums that were given out.
    """

    def __init__(self) -> None:
        self.spent, self._asked = 0.0, 0

    def contract(self, work: Work, federation: str, helper: str, clients: str) -> Contract:
        """Return what all parties agree on; the arguments are those of the contract."""
        return Contract(federation, helper, clients)

    def number(self, ask: Ask, contract: Contract) -> int:
        """Return the number of the sum that an ask is for."""
        if not isinstance(ask.work, Masked):
            raise InputError(f"{ask.work.kind} does not add up in integers: ask for it as Masked")
        if ask.noise:
            raise InputError(
                f"a sum is asked for with noise {ask.noise:.6g}, and there is no account: give the "
                "scheme an account in describe"
            )
        return self._asked

    def pay(self, work: Work, *, given: bool) -> None:
        """Count a sum, given out or not, and spend nothing."""
        self._asked += 1

    def sentence(self, number: int) -> str:
        """Return nothing to say."""
        return ""


class Noisy:
    """Sums of an account: each has a number in it, and spends what it says.

    Attributes
    ----------
    spent
        μ² of all sums that were given out; with shares of the noise, that were asked for.
    """

    def __init__(self, account: Account) -> None:
        self.account, self.spent = account, 0.0
        self._given: Counter[str] = Counter()

    def contract(self, work: Work, federation: str, helper: str, clients: str) -> Contract:
        """Return what all parties agree on; the arguments are those of the contract."""
        least = max(LEAST_SUMMED, self.account.shares + 1)
        return Contract(federation, helper, clients, least, self.account, _private(work).scale)

    def number(self, ask: Ask, contract: Contract) -> int:
        """Return the number of the sum that an ask is for, if its noise matches the account."""
        what = _private(ask.work).name
        number = contract.number(what, self._given[what])
        asked, paid = ask.noise or 0.0, contract.noise_of(number)
        if not math.isclose(asked, paid, rel_tol=1e-9):
            raise InputError(
                f"a sum is asked for with noise {asked:.6g}, and the account has {paid:.6g} steps: "
                "let ask and describe of the scheme agree"
            )
        return number

    def pay(self, work: Work, *, given: bool) -> None:
        """Charge a released sum; with noise shares, any sum: each answer has its own noise."""
        if not given and not self.account.shares:
            return
        what = _private(work).name
        self._given[what] += 1
        self.spent += self._release(what).mu ** 2

    def sentence(self, number: int) -> str:
        """Say what is spent, and against whom that holds."""
        account = self.account
        given = [replace(release, count=self._given[release.what]) for release in account.releases]
        spent = replace(account, releases=given).epsilon
        sums = sum(release.count for release in account.releases)
        return (
            f"sum {number + 1} of {sums}: epsilon {spent:.4g} of {account.epsilon:.4g} is spent, "
            f"at delta {account.delta:g}, {ADJACENCY}, while server and helper do not collude"
        )

    def _release(self, what: str) -> Release:
        release = next(release for release in self.account.releases if release.what == what)
        return replace(release, count=1)


def _private(work: Work) -> PrivateSum:
    if not isinstance(work, PrivateSum):
        raise InputError(f"{work.kind} does not support noisy sums: ask for a PrivateSum")
    return work

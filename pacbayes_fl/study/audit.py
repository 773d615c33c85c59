"""Audits of private studies and runs: which releases are played for, and what is claimed of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import audit as games
from pacbayes_fl.privacy import ledger
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.audit import Audit
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.study.check import check
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study


def audit(what: str, sets: Sequence[str] = (), count: int = games.GAMES, seed: int = 0) -> Audit:
    """Audit the releases of a private run, or those that a study would make.

    Args:
        what: folder of a run, or a study: a file or a name.
        sets: assignments to values of the study.
        count: games with each neighbour.
        seed: of the games.

    Returns:
        Lower bounds on epsilon beside the one that is reported.

    Raises:
        PrivacyError: when it is not private, has released nothing, or a run is given assignments.
        PacBayesFLError: as a run of the study would.
    """
    folder = Path(what)
    if not folder.is_dir():
        return games.audit(*planned(Study.from_toml(what, sets)), count, seed)
    if sets:
        raise PrivacyError(f"{folder} is a run, whose settings are past", hint="audit the study to change them")
    if not (folder / ledger.NAME).is_file():
        raise PrivacyError(f"{folder} is no private run: it has no {ledger.NAME}", hint="privacy.epsilon makes one")
    own = Ledger(folder, Budget(sys.float_info.max, math.nextafter(1.0, 0.0)))  # its own delta is less
    return games.audit(own.charges, own.budget.delta, count, seed)


def planned(study: Study) -> tuple[list[Charge], float]:
    """List the releases of a private study; nothing is trained.

    Args:
        study: what would be run.

    Returns:
        Their charges, and delta.

    Raises:
        PrivacyError: when the study is not private.
        PacBayesFLError: as its run would.
    """
    if study.privacy.epsilon is None:
        what = f"{study.name} is not private: there is no epsilon to audit"
        raise PrivacyError(what, hint="--set privacy.epsilon=1")
    private = check(study, load(study))
    if private is None:
        return [], 0.0
    outside = () if private.outside is None else private.outside.charges.values()
    return [private.charge] * study.plan.rounds + [*outside], private.ledger.budget.delta

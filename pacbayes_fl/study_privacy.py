"""Private studies: what [privacy] asks for becomes a mechanism, cohorts and a ledger, and labels say what was given."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, outside
from pacbayes_fl.federation import private
from pacbayes_fl.federation.engine import AnyMethod, FederationState
from pacbayes_fl.federation.private import Room
from pacbayes_fl.privacy import accounting
from pacbayes_fl.privacy.accounting import Budget, Replacement, noise_multiplier
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import CohortKind, Cohorts, Mechanism, Neighbours
from pacbayes_fl.study_file import TEMPERATURE, PrivacyPart, Study

Round = TypeVar("Round")

_DELTA: Final = 0.1  # of the largest that means anything, 1 / N
_HIDDEN: Final = MappingProxyType({"add-or-remove": "one that sends zeros instead", "replace": "one replaced"})


def check(study: Study, folder: Path | None) -> None:
    """Refuse what no budget pays for, before anything is read or trained.

    Args:
        study: any; one that is not private passes.
        folder: of the run, None where there is none.

    Raises:
        PrivacyError: when a private study has no folder for its ledger, or looks at training rows outside of rounds.
    """
    if study.privacy.epsilon is None:
        return
    if folder is None:
        what = "a private run keeps a ledger of what it spends on disk, and has no folder for it"
        raise PrivacyError(what, hint="give the run a folder: --out DIR")
    for asked in study.held_out:
        refuse_choice(study, f"{'model' if asked is TEMPERATURE else 'method'}.{asked.option}")
    if study.report.certify.scheme == "folds":
        what = "[report.certify] scheme = 'folds' trains several times, and a budget is for one training"
        raise PrivacyError(what, hint="report.certify.scheme = 'split' or 'none'")


def refuse_choice(study: Study, key: str) -> None:
    """Refuse to choose an option of a private study by its training rows: their scores are no part of the budget.

    Args:
        study: any; one that is not private passes.
        key: dotted, of what is to be chosen.

    Raises:
        PrivacyError: when the study is private.
    """
    if study.privacy.epsilon is not None:
        what = f"{key} would be chosen by training rows, which the budget does not pay for"
        raise PrivacyError(what, hint=f"set {key} to a value")


def enter(
    study: Study,
    method: AnyMethod,
    state: FederationState,
    clients: ClientBatch,
    folder: Path | None,
    saved: Mapping[str, Any] | None,
) -> Room | None:
    """Make the room in which the rounds of a private study happen.

    Args:
        study: what to run.
        method: the algorithm.
        state: where the run goes on.
        clients: rows of all clients.
        folder: of the run.
        saved: what was saved beside that state, if it was.

    Returns:
        The room; None where the study is not private.

    Raises:
        PrivacyError: as `check` and `federation.private.enter`, when delta is too large, the parts of [privacy] do not
            fit one another or the federation, no noise keeps the budget, or what was spent is not known.
    """
    part, plan = study.privacy, study.plan
    check(study, folder)
    if part.epsilon is None or folder is None:
        return None
    cohorts, delta = _cohorts(part, study.federation.cohort, clients.clients), _delta(part, clients.clients)
    paper, rounds = part.mechanism == "paper_algorithm_3", max(1, plan.rounds)
    limit = sys.float_info.max if paper else part.epsilon  # that one stops after its rounds, whatever they have cost
    released = 0 if saved is None else int(saved.get("released", 0))
    ledger = Ledger(folder, Budget(limit, delta), released, ahead=plan.rounds - state.round)
    if paper:
        mechanism = Mechanism.algorithm_3(part.clip, part.epsilon, rounds)
    else:  # at the delta of the first release, whoever has left since
        multiplier = part.multiplier or noise_multiplier(part.mechanism, ledger.budget, rounds, cohorts)
        mechanism = Mechanism(part.mechanism, part.clip, multiplier)
    seed = plan.seed if part.randomness == "simulation" else None
    return private.enter(method, state.server, clients, plan, mechanism, cohorts, ledger, seed)


def _cohorts(part: PrivacyPart, size: int | None, clients: int) -> Cohorts:
    paper = part.mechanism == "paper_algorithm_3"
    kind: CohortKind = part.cohort or ("all" if size is None else "fixed" if paper else "poisson")
    if kind != "all" and size is None:
        raise PrivacyError(f"[privacy] cohort = {kind!r} needs the size of a cohort", hint="give federation.cohort")
    moves_in = kind == "fixed" or (kind == "all" and size is not None and size < clients)  # one for another
    neighbours: Neighbours = part.neighbours or ("replace" if paper or moves_in else "add-or-remove")
    return Cohorts(clients, None if size is None else min(size, clients), kind, neighbours)


def _delta(part: PrivacyPart, clients: int) -> float:
    pure = part.mechanism in ("laplace", "knorm")
    delta = part.delta if part.delta is not None else 0.0 if pure else _DELTA / clients
    if delta * clients >= 1:
        what = f"[privacy] delta must be below 1 / N = {1 / clients:.3g}, got {delta:g}"
        raise PrivacyError(what, hint="with more, publishing one client at random would count as private")
    if part.mechanism == "gaussian" and not delta:
        what = "Gaussian noise has no guarantee with delta = 0"
        raise PrivacyError(what, hint="privacy.delta = 'none' takes 0.1 / N; or privacy.mechanism = 'laplace'")
    return delta


def until_spent(rounds: Iterator[Round]) -> Iterator[Round]:
    """Run rounds until there are no more, or the budget does not allow another one: then warn and end.

    Args:
        rounds: of the engine.

    Yields:
        What the engine yields.
    """
    try:
        yield from rounds
    except PrivacyError as error:
        if error.cause != "budget spent":
            raise
        warnings.warn(f"the run ends before its last round: {error}", stacklevel=outside())


def spent(room: Room | None) -> dict[str, float]:
    """Say what was spent so far, for the record of a round.

    Args:
        room: of the run; None where it is not private.

    Returns:
        "epsilon", at the budget's delta; nothing without a room.
    """
    return {} if room is None else {"epsilon": room.ledger.epsilon()}


def to_save(room: Room | None) -> dict[str, int]:
    """Say what a checkpoint must know of the ledger.

    Args:
        room: of the run; None where it is not private.

    Returns:
        "released", the number of releases of which a state may hold anything; nothing without a room.
    """
    return {} if room is None else {"released": len(room.ledger)}


def replacement(study: Study, folder: Path, released: int, at: float) -> Replacement | None:
    """Say what a finished run's releases tell of one client: what a prior drawn by them costs a certificate.

    Args:
        study: of the run.
        folder: of the run.
        released: how many releases its last state has seen.
        at: probability with which the certificate may fail.

    Returns:
        The guarantee that costs it least; None where the run is not private.

    Raises:
        PrivacyError: when the ledger is damaged or was lost.
    """
    if study.privacy.epsilon is None:
        return None
    charges = Ledger(folder, Budget(sys.float_info.max, 0.0), released).charges
    return accounting.replacement(charges, at)


def labels(study: Study, room: Room | None, rounds: int) -> dict[str, Any]:
    """Say what a run has given.

    Args:
        study: that was run.
        room: of the run; None where it is not private.
        rounds: finished.

    Returns:
        "privacy" with numbers and a statement in words, numbers that are not finite as None; nothing without a room.
    """
    if room is None:
        return {}
    part, mechanism, cohorts, given = study.privacy, room.mechanism, room.cohorts, room.ledger.statement()
    claimed = part.epsilon if mechanism.kind == "paper_algorithm_3" else None
    charges = room.ledger.charges
    releases, used = len(charges), tuple(dict.fromkeys(c.multiplier for c in charges)) or (mechanism.multiplier,)
    crowds = dict.fromkeys(_drawn(c.cohorts) for c in charges) or (_drawn(cohorts),)
    words = [
        f"{given} for whole clients ({_HIDDEN[cohorts.neighbours]}) from {releases} releases in {rounds} rounds",
        f"{mechanism.kind} noise of {' and '.join(f'{each:.4g}' for each in used)} times the clip {mechanism.clip:g} "
        f"on the sum of {' and '.join(crowds)}",
    ]
    if claimed is not None:
        words.append(f"PAC-PFL claims epsilon = {claimed:g} for this noise, which does not hold")
    if rounds < study.plan.rounds:
        words.append(f"the budget was spent before the {study.plan.rounds} rounds that were asked for")
    if part.randomness == "simulation":
        words.append("a simulation: its noise comes from the seed and hides nothing from whoever knows that")
    words.append("other runs on the same rows add to it")
    words.append("test scores and all else in the run folder were measured outside of the guarantee")
    numbers = {"epsilon": given.epsilon, "delta": given.delta, "rho": given.rho, "pure": given.pure}
    return {
        "privacy": {
            "mechanism": mechanism.kind,
            "clip": mechanism.clip,
            "multiplier": min(used),
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "claimed": claimed,
            "cohort": cohorts.kind,
            "neighbours": cohorts.neighbours,
            "releases": releases,
            "rounds": rounds,
            "randomness": part.randomness,
            "statement": "; ".join(words),
        }
    }


def _drawn(cohorts: Cohorts) -> str:
    everybody = f"{cohorts.clients} clients"
    if cohorts.kind == "all":
        return everybody if cohorts.divisor == cohorts.clients else f"{cohorts.divisor:g} of {everybody}"
    hidden = "whom nobody may know"
    if cohorts.kind == "fixed":
        return f"{cohorts.divisor:g} of {everybody}, drawn anew in every round, {hidden}"
    return f"{cohorts.divisor:g} expected of {everybody}, each drawn by itself in every round, {hidden}"

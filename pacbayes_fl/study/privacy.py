"""Private studies: [privacy] determines a mechanism, cohorts and a ledger; labels state the guarantee."""

from __future__ import annotations

import math
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pacbayes_fl import files
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import UNREADABLE, PrivacyError, caller_stacklevel
from pacbayes_fl.federation import private, reduction
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.posteriors import private_residuals
from pacbayes_fl.privacy import correlated, guarantees, kinds, mechanisms, outside
from pacbayes_fl.privacy.accounting import Budget, noise_multiplier
from pacbayes_fl.privacy.adaptive import AdaptiveClip
from pacbayes_fl.privacy.charges import ROUND, Charge
from pacbayes_fl.privacy.guarantees import Replacement, rounded
from pacbayes_fl.privacy.ledger import NAME, Ledger, keys_of
from pacbayes_fl.privacy.mechanisms import CohortKind, Cohorts, Mechanism, Neighbours
from pacbayes_fl.privacy.outside import Outside
from pacbayes_fl.privacy.shared_ledger import Shared, SharedLedger
from pacbayes_fl.results.records import SUPPOSED
from pacbayes_fl.study import residuals
from pacbayes_fl.study.config.parts import PrivacyPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import fingerprints, scaling

_DELTA: Final = 0.1  # of the largest that means anything, 1 / N
_WEAK: Final = 1e-3  # a delta above it, or above 1 / N^1.1, is remarked
_HIDDEN: Final = MappingProxyType({"add-or-remove": "one that sends zeros instead", "replace": "one replaced"})


def check(study: Study, folder: Path | None) -> None:
    """Check that the study can be private, before anything is read or trained.

    Args:
        study: any; one that is not private passes.
        folder: of the run, None where there is none.

    Raises:
        PrivacyError: when a private study has no folder for its ledger, asks for a robust aggregate, or looks at
            training rows outside of rounds.
    """
    if study.privacy.epsilon is None:
        if replace(study.privacy, randomness="system") != PrivacyPart():
            what = "[privacy] epsilon = 'none': this run is not private, whatever the other keys of the table say"
            warnings.warn(what, stacklevel=caller_stacklevel())
        return
    if folder is None:
        what = "a private run keeps a ledger of what it spends on disk, and has no folder for it"
        raise PrivacyError(what, hint="give the run a folder: --out DIR")
    if study.privacy.total is not None and study.privacy.ledger is None:
        what = "[privacy] total is the budget of several runs, and there is no ledger that they share"
        raise PrivacyError(what, hint="privacy.ledger = FILE; the budget of one run is privacy.epsilon")
    reduction.check_private(study.plan)
    residuals.check(study)
    for asked in study.held_out:
        refuse_choice(study, f"{asked.table}.{asked.option}")
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
        what = f"{key} would be chosen by the clients' rows, which the budget does not pay for"
        raise PrivacyError(what, hint=f"set {key} to a value")


def open_private(
    study: Study,
    method: AnyMethod,
    state: FederationState,
    clients: ClientBatch,
    folder: Path | None,
    released: int = 0,
    moments: int = 0,
) -> PrivateAggregator | None:
    """Open the private aggregation of a study's rounds.

    Args:
        study: what to run.
        method: the algorithm.
        state: where the run goes on.
        clients: rows of all clients.
        folder: of the run.
        released: how many releases that state has seen.
        moments: numbers of a client's message on the scale of columns; 0 where there is none.

    Returns:
        The aggregator; None where the study is not private.

    Raises:
        PrivacyError: as `check` and `federation.private.open_private`, when delta is too large, the parts of [privacy]
            do not fit one another or the federation, no noise keeps the budget, or what was spent is not known.
    """
    part, plan = study.privacy, study.plan
    check(study, folder)
    if part.epsilon is None or folder is None:
        return None
    remembers = plan.train == "cohort" and private.keeps_state(method, state.server, clients)
    cohorts = _cohorts(part, study.federation.cohort, clients.clients, remembers)
    private.check(method, state.server, clients, plan, part.mechanism, cohorts)  # the least noise can take seconds
    if cohorts.kind == "in-order" and part.ledger is not None:
        what = "cohorts in order are accounted for in a row, and a shared ledger adds up releases of several runs"
        raise PrivacyError(what, hint="privacy.cohort = 'poisson' or 'all'; or privacy.ledger = 'none'")
    delta, simulated = _delta(part, clients.clients), part.randomness == "simulation"
    paper, rounds = kinds.MECHANISMS[part.mechanism].claim is not None, max(1, plan.rounds)
    limit = sys.float_info.max if paper else part.epsilon  # that one stops after its rounds, whatever they have cost
    ledger = Ledger(folder, Budget(limit, delta), released, plan.rounds - state.round, simulated)
    others = _outside(study, ledger.budget, cohorts, moments)
    ledger.reserve(tuple(others.values()))
    if paper:
        mechanism = Mechanism.claimed(part.mechanism, part.clip, part.epsilon, rounds)
    else:  # at the delta of the first release, whoever has left since
        beside = tuple(others.values())
        multiplier = part.multiplier or noise_multiplier(part.mechanism, ledger.budget, rounds, cohorts, beside=beside)
        mechanism = Mechanism(part.mechanism, part.clip, multiplier)
    for remark in _remarks(ledger.budget.delta, clients.clients):
        warnings.warn(remark, stacklevel=caller_stacklevel())
    if kinds.MECHANISMS[part.mechanism].chooses:
        _remark_chance(mechanism, cohorts, part.candidates, rounds)
    seed = plan.seed if simulated else None
    result = private.open_private(method, state.server, clients, plan, mechanism, cohorts, ledger, seed)
    if part.subspace is not None:
        result = private.in_subspace(result, method, part.subspace, plan.seed, part.directions)
    return replace(
        result, outside=Outside(ledger, others, seed) if others else None, adaptive=_adaptive(part, mechanism, cohorts)
    )


def _adaptive(part: PrivacyPart, mechanism: Mechanism, cohorts: Cohorts) -> AdaptiveClip | None:
    if part.clip_quantile is None:
        return None
    return AdaptiveClip.of(mechanism, cohorts, part.clip_quantile, part.clip_rate, part.clip_noise)


def share_ledger(study: Study, aggregator: PrivateAggregator | None, dataset: tables.Dataset, finished: int) -> None:
    """Reserve what a run plans in the ledger that it shares with other runs on the same rows, where it has one.

    Args:
        study: what to run.
        aggregator: of the run; None where it is not private.
        dataset: all rows, in the data's own units.
        finished: rounds.

    Raises:
        PrivacyError: when the budget of all runs would be exceeded, or what they spent is not known.
        CheckpointError: when something cannot be written.
    """
    part = study.privacy
    if aggregator is None or part.ledger is None:
        return
    own, path = aggregator.ledger, files.expanded(part.ledger)
    folder = own.path.parent.absolute()
    rows, payers = fingerprints.for_ledger(dataset), _payers(path, folder.parent)
    shared = SharedLedger(path, part.total, own.budget.delta, own.simulated, rows, folder.name, payers)
    own.join(shared, aggregator.charge, finished + 1, study.plan.rounds)


def _payers(path: Path, beside: Path) -> dict[str, Sequence[str]]:
    """Name the runs in a folder that took part in a shared ledger, with the keys under which it may know them."""
    result = dict[str, Sequence[str]]()
    for file in sorted(beside.glob(f"*/{NAME}")):
        with suppress(*UNREADABLE):
            text = file.with_name("study.toml").read_text("utf-8")
            was = files.expanded(tomllib.loads(text)["privacy"]["ledger"])
            if was.resolve() == path.resolve() or files.moved(was, path):
                result[file.parent.name] = ()
                result[file.parent.name] = keys_of(file)
    return result


def _outside(study: Study, budget: Budget, cohorts: Cohorts, moments: int) -> dict[str, Charge]:
    """Charge the messages that clients of a study send outside of its rounds, by name."""
    part, sizes = study.privacy, {scaling.MESSAGE: moments} if moments else {}
    if residuals.sends(study):
        sizes[residuals.MESSAGE] = private_residuals.COORDINATES
    return {
        name: outside.charge(part.mechanism, budget, part.side_share, cohorts, name, size)
        for name, size in sizes.items()
    }


def checkpoint_every(study: Study) -> int:
    """Rounds between checkpoints: 1 in private runs, so that every release is kept.

    Args:
        study: what is run.

    Returns:
        The number of rounds.
    """
    return study.federation.checkpoint_every if study.privacy.epsilon is None else 1


def _cohorts(part: PrivacyPart, size: int | None, clients: int, remembers: bool) -> Cohorts:
    """Choose cohorts whose account holds; where clients remember who was drawn, that of a fixed size gains nothing."""
    paper = kinds.MECHANISMS[part.mechanism].claim is not None
    usual: CohortKind = "poisson" if not paper else "all" if remembers else "fixed"
    usual = "in-order" if kinds.MECHANISMS[part.mechanism].correlated else usual
    kind: CohortKind = part.cohort or ("all" if size is None else usual)
    if kind != "all" and size is None:
        raise PrivacyError(f"[privacy] cohort = {kind!r} needs the size of a cohort", hint="give federation.cohort")
    moves_in = kind == "fixed" or (kind == "all" and size is not None and size < clients)  # one for another
    neighbours: Neighbours = part.neighbours or ("replace" if paper or moves_in else "add-or-remove")
    return Cohorts(clients, None if size is None else min(size, clients), kind, neighbours)


def _delta(part: PrivacyPart, clients: int) -> float:
    kind = kinds.MECHANISMS[part.mechanism]
    delta = part.delta if part.delta is not None else _DELTA / clients if kind.delta else 0.0
    if delta * clients >= 1:
        what = f"[privacy] delta must be below 1 / N = {1 / clients:.3g}, got {delta:g}"
        raise PrivacyError(what, hint="with more, publishing one client at random would count as private")
    if kind.account == "gaussian" and not delta:
        what = "Gaussian noise has no guarantee with delta = 0"
        raise PrivacyError(what, hint="privacy.delta = 'none' takes 0.1 / N; or privacy.mechanism = 'laplace'")
    return delta


def _remarks(delta: float, clients: int) -> list[str]:
    """Say where a delta is legal and weak: with probability delta a guarantee may fail for good."""
    limits = {f"{_WEAK:g}": _WEAK, f"N^-1.1 = {clients**-1.1:.3g}": clients**-1.1}
    above = [name for name, limit in limits.items() if delta > limit]
    if not above:
        return []
    what = f"delta = {rounded(delta)} is above {' and above '.join(above)} for N = {clients} clients, which is weak"
    return [f"{what}: set privacy.delta to less, such as {10.0 ** math.floor(math.log10(min(limits.values()))):g}"]


def _remark_chance(mechanism: Mechanism, cohorts: Cohorts, candidates: int, rounds: int) -> None:
    """Warn where the largest of C Gumbel numbers, about s ln C, is above all regret that clients could have."""
    if mechanism.multiplier * math.log(candidates) > cohorts.divisor:
        what = f"each of {rounds} rounds chooses among {candidates} priors mostly by chance: its noise of"
        what = f"{what} {mechanism.multiplier:.3g} times the clip outweighs {cohorts.divisor:g} clients"
        warnings.warn(f"{what}; try federation.rounds = 1 or 2", stacklevel=caller_stacklevel())


@contextmanager
def stop_when_spent() -> Iterator[None]:
    """End the rounds of a loop inside where the budget does not allow another one, with a warning."""
    try:
        yield
    except PrivacyError as error:
        if error.cause != "budget spent":
            raise
        warnings.warn(f"the run ends before its last round: {error}", stacklevel=caller_stacklevel())


def epsilon_spent(aggregator: PrivateAggregator | None) -> dict[str, float]:
    """Epsilon spent so far, for the record of a round.

    Args:
        aggregator: of the run; None where it is not private.

    Returns:
        "epsilon", at the budget's delta, under another name in a simulation; nothing without one.
    """
    return {} if aggregator is None else {_called("epsilon", aggregator.ledger.simulated): aggregator.ledger.epsilon()}


def _called(number: str, simulated: bool) -> str:
    """Name a number of a guarantee by what it is."""
    return f"{number}{SUPPOSED}" if simulated else number


def replacement(study: Study, folder: Path, released: int, at: float) -> Replacement | None:
    """Privacy of one client under a finished run's releases: the cost of its prior for a certificate.

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
    simulated = study.privacy.randomness == "simulation"
    charges = Ledger(folder, Budget(sys.float_info.max, 0.0), released, simulated=simulated).charges
    return guarantees.replacement(charges, at)


def labels(
    study: Study, aggregator: PrivateAggregator | None, rounds: int, together: Shared | None = None
) -> JsonTable:
    """The guarantee of a run, for its labels.

    Args:
        study: that was run.
        aggregator: of the run; None where it is not private.
        rounds: finished.
        together: what all runs of a shared ledger have spent; None without one.

    Returns:
        "privacy" with numbers and a statement in words, numbers that are not finite as None; nothing without one.
        In a simulation the numbers of a guarantee are called "epsilon_if_noise_were_secret" and so on.
    """
    if aggregator is None:
        return {}
    part, mechanism, cohorts, given = (
        study.privacy,
        aggregator.mechanism,
        aggregator.cohorts,
        aggregator.ledger.statement(),
    )
    claim = kinds.MECHANISMS[mechanism.kind].claim
    claimed = None if claim is None else part.epsilon
    every = aggregator.ledger.charges
    charges = [charge for charge in every if charge.message == ROUND]
    others = {charge.message: charge.multiplier for charge in every if charge.message != ROUND}
    releases, used = len(every), tuple(dict.fromkeys(c.multiplier for c in charges)) or (mechanism.multiplier,)
    crowds = dict.fromkeys(_drawn(c.cohorts) for c in charges) or (_drawn(cohorts),)
    simulated = part.randomness == "simulation"
    statements = ["a simulation: its noise comes from the seed and hides nothing from whoever knows that"] * simulated
    statements += [
        f"{given} for whole clients ({_HIDDEN[cohorts.neighbours]}) from {releases} releases in {rounds} rounds"
        + _beside(others),
        f"{mechanism.kind} noise of {_noise(part, mechanism, cohorts, used)} on the sum of {' and '.join(crowds)}",
    ]
    if part.subspace is not None:
        length, kind = mechanisms.coordinates(aggregator.empty), part.directions
        statements.append(f"of the {length} numbers of a message nothing leaves but {part.subspace} {kind} directions")
    if claim is not None:
        called = _called("epsilon", simulated)
        statements.append(f"{claim.who} claims {called} = {claimed:g} for this noise, which does not hold")
    if rounds < study.plan.rounds:
        statements.append(f"the budget was spent before the {study.plan.rounds} rounds that were asked for")
    statements += (remarks := _remarks(given.delta, cohorts.clients))
    statements.append(_together(together, simulated) or "other runs on the same rows add to it")
    statements.append("test scores and all else in the run folder were measured outside of the guarantee")
    numbers = {"epsilon": given.epsilon, "rho": given.rho, "pure": given.pure}
    return {
        "privacy": {
            "mechanism": mechanism.kind,
            "clip": mechanism.clip,
            **({} if part.clip_quantile is None else {"clip_quantile": part.clip_quantile}),
            **({} if part.subspace is None else {"subspace": part.subspace}),
            "multiplier": min(used),
            "delta": given.delta,
            **{_called(name, simulated): value if math.isfinite(value) else None for name, value in numbers.items()},
            "claimed": claimed,
            "cohort": cohorts.kind,
            "neighbours": cohorts.neighbours,
            "releases": releases,
            "outside": others,
            "rounds": rounds,
            "randomness": part.randomness,
            "remarks": remarks,
            "statement": "; ".join(statements),
            **_shared(together, simulated),
        }
    }


def _noise(part: PrivacyPart, mechanism: Mechanism, cohorts: Cohorts, used: Sequence[float]) -> str:
    """Say how much noise updates have; where the clip adapts, its count is paid for by a little more of it."""
    each = [replace(mechanism, multiplier=multiplier) for multiplier in used]
    rules = [_adaptive(part, one, cohorts) for one in each]
    noise = [one.multiplier if rule is None else rule.multiplier(one) for one, rule in zip(each, rules, strict=True)]
    said = f"{' and '.join(f'{one:.4g}' for one in noise)} times the clip"
    if kinds.MECHANISMS[mechanism.kind].correlated:
        norm, wide = correlated.sensitivity(cohorts), cohorts.separation
        said = f"{' and '.join(f'{norm * one:.4g}' for one in noise)} times the clip {mechanism.clip:g}"
        return f"{said}, which cancels over {wide} rounds,"
    if rules[0] is None:
        return f"{said} {mechanism.clip:g}"
    counts = [rule.count_noise(one) for one, rule in zip(each, rules, strict=True) if rule is not None]
    return (
        f"{said}, which begins at {mechanism.clip:g} and follows the {part.clip_quantile:g} quantile of norms (counts "
        f"with noise of {' and '.join(f'{one:.4g}' for one in counts)} clients are part of the releases),"
    )


def _shared(together: Shared | None, simulated: bool) -> JsonTable:
    if together is None:
        return {}
    return {
        "ledger": {
            _called("epsilon", simulated): together.epsilon,
            "delta": together.budget.delta,
            _called("total", simulated): together.budget.epsilon,
            "other_runs": together.runs,
            "client": together.client,
        }
    }


def _together(together: Shared | None, simulated: bool) -> str:
    """Say what all runs of a shared ledger have spent."""
    if together is None:
        return ""
    spent, delta, total = map(rounded, (together.epsilon, together.budget.delta, together.budget.epsilon))
    runs = f"with {together.runs} other run{'s' * (together.runs != 1)} of the shared ledger on the same rows"
    return f"{runs} {_called('epsilon', simulated)} = {spent} at delta = {delta}, of {total} that it allows"


def _beside(others: JsonMapping) -> str:
    """Name the releases outside of rounds, with their noise."""
    named = [f"{name} (noise of {multiplier:.4g} times its norm)" for name, multiplier in others.items()]
    return f" and outside of them, of {' and '.join(named)}" if named else ""


def _drawn(cohorts: Cohorts) -> str:
    everybody = f"{cohorts.clients} clients"
    if cohorts.kind == "all":
        return everybody if cohorts.divisor == cohorts.clients else f"{cohorts.divisor:g} of {everybody}"
    if cohorts.kind == "in-order":
        order = f"in an order that anybody may know, each in at most one of {cohorts.separation} rounds in a row"
        return f"{cohorts.divisor:g} of {everybody} {order}"
    hidden = "whom nobody may know"
    if cohorts.kind == "fixed":
        return f"{cohorts.divisor:g} of {everybody}, drawn anew in every round, {hidden}"
    return f"{cohorts.divisor:g} expected of {everybody}, each drawn by itself in every round, {hidden}"

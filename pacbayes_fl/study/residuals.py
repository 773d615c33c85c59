"""How a study's regression models err: shape and intervals, learned after the rounds and kept for new clients."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from pacbayes_fl.errors import UNREADABLE, DataError, PrivacyError, StudyError, caller_stacklevel
from pacbayes_fl.federation import personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.posteriors import private_residuals
from pacbayes_fl.posteriors.functions.conformal import ALPHA, ConformalPosterior
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.posteriors.residuals import BINS, checked, pooled, recalibrated, shape_of_errors, standard_normal
from pacbayes_fl.privacy import kinds
from pacbayes_fl.results.folder import FILES
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.file import Study

FILE: Final = "residuals.json"
"""What a run folder calls the federation's residuals."""

MESSAGE: Final = "residuals"
"""What the ledger calls the release of residuals."""


@dataclass(frozen=True, eq=False)
class ErrorShape:
    """How predictions of a study differ from those of its posteriors: not at all, or in shape or interval.

    Args:
        mixture: whether the shape is learned.
        others: histogram of the federation's residuals [BINS], by what clients sent; None where nobody did.
        share: of these in a client's shape, where it has many rows.
        conformal: whether intervals are.
        blocks: of consecutive rows, for these.
        alpha: share of rows that may fall outside of them.
    """

    mixture: bool = False
    others: Tensor | None = None
    share: float = 0.0
    conformal: bool = False
    blocks: int | None = None
    alpha: float = ALPHA

    @property
    def learned(self) -> bool:
        """Whether anything is."""
        return self.mixture or self.conformal

    def around(self, posterior: Any) -> Any:
        """Give the posterior of some clients the shape of its errors.

        Args:
            posterior: of K clients.

        Returns:
            A posterior for predictions; the given one is that of certificates.

        Raises:
            StudyError: when it has no leave-one-out residuals.
        """
        shown = recalibrated(posterior, self.others, self.share) if self.mixture else posterior
        if not self.conformal:
            return shown
        others = standard_normal(torch.empty(0)) if self.others is None else self.others
        return ConformalPosterior(checked(posterior), shown, others, self.blocks, self.alpha)


GAUSSIAN: Final = ErrorShape()
"""What the posteriors of most studies say is left as it is."""


def check(study: Study) -> None:
    """Check that a budget can pay for what the shape of a study's errors takes.

    Args:
        study: any.

    Raises:
        PrivacyError: when clients would send their residuals beside noise that a paper prints for rounds alone.
    """
    if _printed(study) and shared(study):
        name = study.privacy.mechanism
        what = f"[model] residuals = 'mixture' takes a histogram of every client's residuals, which {name} does not"
        raise PrivacyError(f"{what} pay for", hint="model.residual_share = 0 learns from each client's own rows alone")


def asked_by(study: Study) -> str:
    """Name the setting that asks for leave-one-out residuals.

    Args:
        study: one that asks for them.

    Returns:
        The setting as errors print it.
    """
    return "report.intervals = 'conformal'" if study.report.intervals == "conformal" else "residuals = 'mixture'"


def check_method(study: Study) -> None:
    """Check, before it is trained, that a method can have what is asked of its errors.

    Args:
        study: any.

    Raises:
        StudyError: when its models are networks, lines or trees, or its noise is not Gaussian, so that rows cannot be
            left out.
    """
    if not _shape(study, None).learned:
        return
    key = asked_by(study)
    if getattr(study.model, "likelihood", "") == "student-t":
        what = f"{key} needs leave-one-out residuals in closed form, which likelihood = 'student-t' does not have"
        raise StudyError(what, hint="drop one of them: Student-t noise says itself what shape errors have")
    if study.recipe.model != "functions" or not study.recipe.method.leaves_rows_out:
        name = study.method.name if study.recipe.model == "functions" else f"{study.method.name}, a method on networks,"
        what = f"{key} needs leave-one-out residuals, which {name} does not have"
        raise StudyError(what, hint="drop it, or choose a Gaussian process, such as pac-pfl")


def learn(
    study: Study,
    method: AnyMethod,
    state: FederationState,
    existing: ScaledGroup,
    private: PrivateAggregator | None = None,
    held: Tensor | None = None,
) -> ErrorShape:
    """Collect the residuals of a federation after its last round, one message of each client.

    Where held-out rows chose the rounds, their residuals are half of the federation's: a row that is left out has been
    seen by the prior, and leaves less than a new one.

    In a private run that is one release, of fewer bins (`posteriors.private_residuals`): a client's message is shares
    of its rows, |v|_1 <= 1 and |v|_2 <= 1, so that without the client the sum moves by at most 1.

    Args:
        study: its [model] says whether.
        method: the algorithm.
        state: after the last round.
        existing: clients that took part.
        private: pays for the release of a private run; nothing is collected in one without.
        held: histogram of the residuals of held-out rows [BINS], if there is one.

    Returns:
        The shape of errors, for these and for new clients.

    Raises:
        StudyError: when the method's posteriors have no leave-one-out residuals.
        PrivacyError: when the budget does not allow it.
    """
    outside = None if private is None else private.outside
    if not sends(study) or (outside is None and study.privacy.epsilon is not None):
        return _shape(study, None)

    def message(index: Tensor, posterior: Posterior) -> Tensor:
        return shape_of_errors(checked(posterior).leave_one_out())

    sent = personalisation.personalise(method, state, existing.train, study.plan, message)
    result = existing.train.x.new_zeros(existing.train.clients, BINS, dtype=torch.float64)
    for index, histograms in sent:
        result[index] = histograms
    if outside is None:
        others = pooled(result)
        return _shape(study, others if held is None else beside_held(others, held.to(others)))
    released = outside.mean(MESSAGE, private_residuals.coarse(result), private_residuals.LONGEST, state.round)
    return _shape(study, private_residuals.fine(released, outside.noise_std(MESSAGE, private_residuals.LONGEST)))


def beside_held(others: Tensor | None, held: Tensor) -> Tensor:
    """Give the federation's residuals where those of held-out rows are half of them.

    Args:
        others: of training rows, each left out in its turn [BINS]; None where nobody sent any.
        held: of held-out rows [BINS], or for each client [K, BINS].

    Returns:
        [*, BINS], as `held`.
    """
    return held if others is None else 0.5 * (others.to(held) + held)


def learned(study: Study) -> bool:
    """Whether the shape of errors is learned after the rounds, by the states of all clients."""
    return _shape(study, None).learned


def sends(study: Study) -> bool:
    """Whether clients send their residuals.

    Args:
        study: any.

    Returns:
        True where they do, of a private run as one release.
    """
    return shared(study) or (study.report.intervals == "conformal" and not _printed(study))


def shared(study: Study) -> bool:
    """Whether the shape of a client's errors is partly that of others.

    Args:
        study: any.

    Returns:
        True where [model] says so.
    """
    return study.model.residuals == "mixture" and study.model.residual_share > 0


def _printed(study: Study) -> bool:
    """Whether a run adds noise that a paper prints, for its rounds and nothing else."""
    return study.privacy.epsilon is not None and kinds.MECHANISMS[study.privacy.mechanism].claim is not None


def _shape(study: Study, others: Tensor | None) -> ErrorShape:
    """Give what a study asks for."""
    mixture, conformal = study.model.residuals == "mixture", study.report.intervals == "conformal"
    return ErrorShape(mixture, others, study.model.residual_share, conformal, study.report.interval_blocks)


def labels(study: Study, held: bool = False) -> JsonTable:
    """Say what shape errors have, and what intervals are.

    Args:
        study: of a run.
        held: whether residuals of held-out rows are among the federation's.

    Returns:
        "residuals" and "intervals" in words; nothing where they are those of the model.
    """
    result: JsonTable = {}
    if study.model.residuals == "mixture":
        share = study.model.residual_share
        noisy = ", a noisy release" if study.privacy.epsilon is not None and sends(study) else ""
        beside = ", half of these of held-out rows" if held and share > 0 else ""
        what = f"three normals by leave-one-out residuals, {share:g} of them the federation's{beside}{noisy}"
        result["residuals"] = f"{what}; means are the model's"
    if study.report.intervals == "conformal":
        kind, least = ("jackknife+", "90 %")
        if study.report.interval_blocks is not None:
            kind, least = "CV+ of consecutive rows", "90 % less sqrt(2 / m)"
        what = f"at least {least} for exchangeable rows, in units not their own, of clients that never trained"
        other = "about 95 % as a rule; below 19 rows and for pooled models a quantile of everybody's residuals"
        result["intervals"] = f"{kind}: {what}, {other}"
    return result


def to_json(shape: ErrorShape, round: int) -> bytes:
    """Serialise what clients sent, for `read`.

    Args:
        shape: of a run.
        round: after which.

    Returns:
        The contents of the file.
    """
    others = None if shape.others is None else shape.others.tolist()
    return (json.dumps({"round": round, "others": others}, allow_nan=False) + "\n").encode()


def keep(folder: Path | None, shape: ErrorShape, round: int) -> None:
    """Write what clients sent into a run folder.

    Args:
        folder: of the run; None of one that is kept nowhere.
        shape: of the run.
        round: after which it was learned.

    Raises:
        CheckpointError: when it cannot be written.
    """
    if folder is not None:
        put(folder, {FILE: to_json(shape, round) if shape.learned else None})


def read(study: Study, folder: Path) -> tuple[ErrorShape, int]:
    """Read what clients sent.

    Args:
        study: of the run or release.
        folder: of it.

    Returns:
        The shape of its errors, and the round after which it was learned; that of a study without any is 0.

    Raises:
        DataError: when the file is missing or cannot be read.
    """
    if not _shape(study, None).learned:
        return GAUSSIAN, 0
    path, hint = folder / FILE, "finish the run with --resume"
    try:
        saved = json.loads(path.read_text("utf-8"))
        round = int(saved["round"])
        others = None if saved["others"] is None else torch.tensor(saved["others"], dtype=torch.float64)
        if others is not None and (others.shape != (BINS,) or not bool((others >= 0).all()) or not float(others.sum())):
            raise ValueError("it holds no histogram")
        if (others is None) == sends(study) and (others is not None or study.privacy.epsilon is None):
            raise ValueError("it is of another study")
        return _shape(study, others), round
    except FileNotFoundError:
        raise DataError(f"{path} is missing: it holds {FILES[FILE].holds}", hint=hint) from None
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error


def recall(
    study: Study,
    folder: Path | None,
    method: AnyMethod,
    state: FederationState,
    existing: ScaledGroup,
    private: PrivateAggregator | None = None,
    held: Tensor | None = None,
) -> ErrorShape:
    """Give the shape of errors of a saved run, learned again where its last round is not the one that was saved.

    A private run releases it once, and keeps it whatever rounds follow. Where its budget is spent it has none.

    Args:
        study: of the run.
        folder: of it; None of one that is kept nowhere.
        method: the algorithm.
        state: that was saved.
        existing: its clients.
        private: as `learn`.
        held: as `learn` [BINS].

    Returns:
        The shape of errors.

    Raises:
        DataError: when the file cannot be read.
    """
    if folder is not None and (folder / FILE).is_file():
        shape, round = read(study, folder)
        once = study.privacy.epsilon is not None and shape.others is not None
        if round == state.round or once or not shape.learned:
            return shape
    try:
        return learn(study, method, state, existing, private, held)
    except PrivacyError as error:
        if error.cause != "budget spent":
            raise
        warnings.warn(f"errors have the shape of each client's own: {error}", stacklevel=caller_stacklevel())
        return _shape(study, None)

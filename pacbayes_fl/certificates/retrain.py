"""Train a run again so that it can be certified; requests that would fail afterwards are refused before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pacbayes_fl.certificates.request import Request
from pacbayes_fl.data.tables import Dataset
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.tempered import untempered
from pacbayes_fl.results.manifest import verify
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.search import choice_file, held_out
from pacbayes_fl.study.uncertifiable import reasons_of


def certifiable(folder: Path) -> tuple[Study, Path]:
    """The run with certificates for existing clients: that in the folder, or a new one.

    Args:
        folder: of a finished run.

    Returns:
        The study of that run, and its folder, which is `folder` itself or beside it.

    Raises:
        StudyError: when the folder is not a run's.
        DataError: when its study was altered since it was run.
        PrivacyError: when the run is private, so that training again would be another release.
    """
    study = Study.from_toml(folder / "study.toml")
    verify(folder, ("study.toml", choice_file.FILE), ("checkpoints/", "privacy.json"))  # it is what will be trained
    if study.report.certify.scheme != "none":
        return study, folder
    if study.privacy.epsilon is not None:
        what = "a private run is not trained again: the releases of both would add up, in two ledgers"
        raise PrivacyError(what, hint="run the study anew with report.certify.scheme = 'split' from the start")
    certify = replace(study.report.certify, scheme="split")
    study = choice_file.without_choice(replace(study, report=replace(study.report, certify=certify)), folder)
    return study, folder.with_name(f"{folder.name}-certify")


def is_finished(study: Study, folder: Path) -> bool:
    """Whether a folder holds a finished run of a study.

    Args:
        study: as `certifiable` gives it.
        folder: its folder.

    Returns:
        False where there is none, or one that is to go on.

    Raises:
        CheckpointError: when the run there is of another study.
    """
    if not (folder / "metrics.json").is_file():
        return False
    settled, _ = choice_file.recall(study, folder)
    saved = Study.from_toml(folder / "study.toml")
    checkpoint.check_study(saved.table(), settled.table())
    return saved.plan.rounds == settled.plan.rounds


def check(study: Study, request: Request) -> None:
    """Refuse requests that no training can satisfy.

    Args:
        study: as `certifiable` gives it, before it is trained.
        request: for the new run.

    Raises:
        AssumptionError: with all reasons at once, each with the key that would change it.
        DataError: when its rows cannot be divided.
    """
    dataset = load(study)
    method, _ = prepare(held_out.first(study), held_rows.divide(study, dataset).dataset)
    method = untempered(method)
    part, loss = study.report.certify, request.loss
    real = dataset.classes is None
    bound = request.record
    new = bound.group == "new"
    functions = type(method).learned_priors is not Method.learned_priors
    broken = {
        **dict.fromkeys(reasons_of(study, method), True),
        f"{study.method.name} has no posterior over hypotheses: method.name = one whose models are uncertain, or"
        " --bound holdout-betting": (type(method).refine is Method.refine and not bound.fixed),
        f"the bound {bound.name!r} is about one hyper-posterior over functions: method.name = 'pac-pfl'": (
            bound.group is not None and not functions
        ),
        "clients were not declared independent draws of one distribution of clients (report.certify.drawn_clients ="
        " true, where they are)": new and not part.drawn_clients,
        "beta must be the same for all new clients, whose numbers of rows differ (--beta with a number)": (
            new and bound.equal_beta and not isinstance(request.beta, float | int) and _ragged(dataset)
        ),
        "the data have no new clients": new and "new" not in dataset.groups,
        f"the bound {bound.name!r} is for a prior that was drawn with privacy, and a split has none": bound.private,
        f"the bound {bound.name!r} is for exact Gibbs posteriors: method.name = 'pac-pfl-bnn' with method.posterior ="
        " 'importance'": bound.posterior == "exact Gibbs" and not method.finite_posterior,
        f"{loss.name if loss else ''} is not for {'real targets' if real else 'labels'} (--loss)": (
            loss is not None and hasattr(loss, "expected") != real
        ),
        "what chose by the rows of the bound was not counted (--tried)": request.tried is None,
    }
    if reasons := [reason for reason, holds in broken.items() if holds]:
        raise AssumptionError(
            f"a run with report.certify.scheme = {part.scheme!r} would have no certificate: {'; '.join(reasons)}",
            hint="nothing was trained",
        )


def _ragged(dataset: Dataset) -> bool:
    """Whether new clients have different numbers of rows."""
    return "new" in dataset.groups and len(set(dataset.groups["new"].train.size.tolist())) > 1

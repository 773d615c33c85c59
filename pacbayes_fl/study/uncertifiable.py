"""Certificates that a run will not have, known from its study before it is trained."""

from __future__ import annotations

import warnings
from typing import Final

from pacbayes_fl.errors import caller_stacklevel
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.file import Study

UNDECLARED: Final = (
    "the rows were not declared independent draws of the client's distribution (report.certify.independent = true,"
    " where they are)"
)
"""Why rows of a file have no certificate, and what a study says of those that may have one."""

CLIPPED: Final = (
    "aggregate = {!r} ended steps in every fold at a length that is usual among all clients, those of the bound"
    " among them (federation.aggregate = 'mean' or 'median' joins each fold by itself)"
)


def independent(study: Study) -> bool:
    """Whether the rows of a client are independent draws of its distribution, as declared or as the source is known.

    Images are drawn without replacement, which is no less concentrated than independent draws are (Hoeffding 1963);
    where clients got fixed numbers by label, each label's rows are, and what is bounded is the risk at that mix.

    Args:
        study: of the run.

    Returns:
        True where bounds may rely on it.
    """
    declared = study.report.certify.independent
    source = sources.find(study.data.source)
    return source is not None and source.rows_independent if declared is None else declared


def normalised(study: Study) -> str:
    """Reason why a network that normalises by rows has no certificate where its prior has seen none.

    Args:
        study: of the run.

    Returns:
        The reason, with the key that lets priors see rows, where there is one.
    """
    key = " (report.certify.prior = 'personal')" if study.report.certify.scheme == "split" else ""
    return f"the network normalises by rows that the prior has seen, and this one has seen none{key}"


def told_by_plan(study: Study) -> tuple[str, ...]:
    """Reasons why priors of folds know something of the folds without them, whatever happens in the training.

    Args:
        study: of the run.

    Returns:
        The reasons; none where there are no folds.
    """
    rule = study.plan.rule
    return (CLIPPED.format(rule.name),) if study.report.certify.scheme == "folds" and rule.clips else ()


def reasons_of(study: Study, method: AnyMethod) -> tuple[str, ...]:
    """Reasons why the clients of the training will have no certificate, whichever bound is asked for.

    Args:
        study: of the run, which reserves rows for certificates.
        method: of the study.

    Returns:
        The reasons that the study gives; what data, training and request add is not known yet.
    """
    part = study.report.certify
    unseen = part.scheme == "folds" or part.prior == "global"
    broken = [normalised(study)] if unseen and not method.row_by_row else []
    return (*broken, *told_by_plan(study), *(() if independent(study) else (UNDECLARED,)))


def announce(study: Study, method: AnyMethod) -> None:
    """Warn, before the first round, where a study reserves rows for certificates that it will not have.

    Args:
        study: in which everything is settled.
        method: of the study.

    Warns:
        UserWarning: with the reasons, each with the key that would change it, where there is one.
    """
    if study.report.certify.scheme != "none" and (reasons := reasons_of(study, method)):
        what = f"report.certify.scheme = {study.report.certify.scheme!r}, and certify will refuse the clients of the"
        warnings.warn(f"{what} training: {'; '.join(reasons)}", stacklevel=caller_stacklevel())

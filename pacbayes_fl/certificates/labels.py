"""Labels of a table of certificates: its rows, priors and posteriors."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pacbayes_fl.bounds.checks import of_library
from pacbayes_fl.certificates.fingerprint import fingerprint
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows
from pacbayes_fl.files import JsonTable
from pacbayes_fl.results.updates import since
from pacbayes_fl.study.run import Trained


def labels_of(trained: Trained, request: Request, groups: Mapping[str, BoundRows]) -> JsonTable:
    """Describe the assumptions behind the numbers of a table.

    Args:
        trained: the run.
        request: of the table.
        groups: rows of its groups of clients.

    Returns:
        The labels of the table, as JSON can hold them.
    """
    part, later = trained.study.report.certify, since(trained.folder)
    priors = {
        "split": "a client's model after the training on its other rows",
        "client-level DP": "the server's, released with",
    }
    rows, units = {}, {}
    for name, group in groups.items():
        seen = "training rows that the training has not seen" if group.prior.source == "split" else "all training rows"
        prior = priors.get(group.prior.source, "what the server knows of others")
        if group.prior.private:
            prior = f"{prior} {group.prior}"
        if part.scheme == "folds" and name == "existing":
            prior = f"of {part.folds} hyper-posteriors the one that the client's fold had no part in"
        if group.prior.source == "split" and not bool(group.seen.mask.any()):
            prior = "what the server knows after the training on other rows"
        if request.smooth is not None:
            prior = f"particles blurred by {request.smooth:g}, against the data-free hyper-prior"
        since_then = f" and those among {later}" if request.later else ""
        rows[name] = f"{seen}{since_then}; prior: {prior}"
        own, towards = "others' average units", "the typical moments of the clients that priors saw"
        if group.prior.source == "split":
            own = "the client's rows that the prior saw"
            towards = f"{own}, with moments shrunk towards those of all clients"
        units[name] = {
            "client": f"standardised by {own}",
            "shrunk": f"standardised by {towards}",
            "pooled": "standardised by the rows of all clients that priors saw",
            "none": "in their own units",
        }[trained.groups[name].shared.kinds[-1]]
        if (transform := trained.groups[name].shared.transform) is not None:
            units[name] = f"t = {transform.title}, {units[name]}"
        if trained.groups[name].shared.summaries is not None:
            of = own if group.prior.source == "split" else "the average client, as none of the bound's rows may enter"
            units[name] += f"; client inputs: summaries of {of}"
    beside, fixed = request.shares[1], request.record.fixed
    labels: JsonTable = {
        "scheme": part.scheme,
        "rows": rows,
        "posterior": "none: the bound is on one predictor that was fixed before the rows of the bound"
        if fixed
        else "the Gibbs predictor of the prior, refined by the rows of the bound, or one on the way to it"
        if request.record.group is None
        else "each client's Gibbs predictor under every prior, or the prior itself where that has less free energy",
        "formula": request.record.statement,
        "assumes": list(request.record.assumptions),
        "pooled": request.record.pooling,
        "predictor": _predictors(trained, groups, later is not None) if fixed or beside else {},
        "delta_shares": {"bound": request.shares[0], "hold-out bound": beside},
        "choice": _choice(request),
        "draws": request.draws,
        "jointly": request.jointly,
        "tried": request.tried,
        "requests": "counted in certified.jsonl here and in runs on the same rows or file beside it, not elsewhere"
        if trained.folder is not None
        else "not counted, as the run has no folder",
        "test_risk": "of the same predictor on the client's test rows, which nothing has seen",
        "round": trained.state.round,
    }
    if later is not None:
        fate = "changed what predict uses, but not the models here, which have not learned from them"
        labels["later"] = f"{later} {'are among the rows of the bound' if request.later else fate}"
    bound = request.record
    if bound.group is None and not bound.poolable:
        labels["no_average"] = f"the bound {bound.name!r} is on each client on its own"
    if request.loss is not None and not of_library(request.loss):
        labels["loss"] = _origin(request.loss)
    if trained.fell_back:
        labels["fell_back"] = list(trained.fell_back)
    return labels if trained.dataset.classes is not None else labels | {"units": units}


def _predictors(trained: Trained, groups: Mapping[str, BoundRows], updated: bool) -> dict[str, str]:
    """Name the predictor of each group that was fixed before the rows of the bound, by the mean that its loss is of."""
    when = "used before later rows came" if updated else "uses"
    kinds = {
        True: f"the personal models that predict {when}, which have not seen the rows",
        False: "the averaged predictions of the prior, which predict would personalise with the rows",
    }
    shared = trained.groups["existing"].shared
    of = ""
    if shared.transform is not None:
        of = "; the mean is that of t, where predict gives that of y"
    elif shared.bounds is not None:
        of = "; the mean is that before the target's bounds, where predict gives that of a target that ends there"
    return {name: kinds[group.predicts] + of for name, group in groups.items()}


def _origin(loss: object) -> JsonTable:
    """Say where a loss of one's own can be found again, and what it was made of."""
    kind = type(loss)
    spec = getattr(sys.modules.get(kind.__module__), "__spec__", None)
    file = {} if spec is None or spec.origin is None else {"file": spec.origin}
    return {"class": kind.__qualname__, **file, "sha256": fingerprint(loss)}


def _choice(request: Request) -> str:
    if not request.record.chooses or request.posterior == "refined":
        return "none: that which the rows gave"
    return "of each client the posterior with the smallest bound: share 1 is the refined one, share 0 the prior"

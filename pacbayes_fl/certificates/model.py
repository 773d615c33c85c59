"""Certificates of models that no federation has trained: of torch, scikit-learn, laplace-torch, Pyro or one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import Bound, BoundedLoss, Certificate, MonteCarlo, Premises, Provenance, ZeroOne
from pacbayes_fl.bounds.checks import checked, counts_errors, of_library, row_by_row, whole
from pacbayes_fl.bounds.further import ONE_DRAW
from pacbayes_fl.bounds.holdout import of_losses
from pacbayes_fl.bounds.losses import require_parts
from pacbayes_fl.bounds.premises import Source
from pacbayes_fl.bounds.table import DEFAULT
from pacbayes_fl.certificates.hypotheses import Hypotheses, Predict, hypotheses_of
from pacbayes_fl.certificates.outputs import AS_LABELS, array_of, said_of
from pacbayes_fl.certificates.repeats import Repeats, largest_variance
from pacbayes_fl.certificates.request import loss_of
from pacbayes_fl.certificates.row_keys import keys_of
from pacbayes_fl.certificates.rows_alone import asked_again, require_alone_on_average, require_fixed
from pacbayes_fl.errors import AssumptionError, ShapeError, shown

_MEASURED = ("risk", "variance", "kl", "n", "beta"), ("losses", "risk", "n")
"""Numbers that bounds can have of a posterior, and of one predictor."""
_LISTED = (*_MEASURED[False], "tandem_risk")
"""Those of a posterior over a list, all pairs of which are known."""

_NEVER = "a prior with some weight on all that the model may draw"
_FULLY = 10  # hypotheses that are asked for all parts of the rows, and of draws nearly all that are asked


def certify_model(
    model: Any,
    prior: Any = None,
    rows: tuple[Any, Any] | None = None,
    loss: BoundedLoss | str | None = None,
    *,
    source: Source | Provenance = "unknown",
    independent: bool = False,
    delta: float = 0.05,
    bound: str | Bound | None = None,
    beta: float | None = None,
    sample: Any = None,
    kl: Any = None,
    log_ratio: Any = None,
    weights: Any = None,
    draws: int = 1000,
    draws_delta: float = 0.2,
    tried: int | None = 1,
    seed: int = 0,
) -> Certificate:
    """Bound the true risk of a predictor or of a posterior over predictors, from rows that its prior has not seen.

    Without a prior the model is one predictor, which must not have seen the rows at all: its bound is a test-set bound.
    With one it is a posterior, which may have seen them: the bound is PAC-Bayesian, on the Gibbs predictor. Equal rows
    count once, and more often only where that makes the bound larger.

    Args:
        model: a posterior of laplace-torch over all weights or the last layer; a Pyro guide; scikit-learn's
            BayesianRidge or ARDRegression; a list of predictors with `weights`; with `sample` or `kl` anything else
            that can be drawn from. A predictor: a scikit-learn estimator (its `predict` under the 0-1 loss), a module,
            or a function of inputs. Modules and functions give scores or log probabilities [n, C], or numbers [n].
        prior: of the same kind, fixed without the rows: another posterior fitted elsewhere, "own" for that of a Laplace
            posterior over all weights, a guide's program, weights of the list (uniform when None); None for one
            predictor.
        rows: inputs and targets, of which the model alone must know the form; labels for a classifier. A module gets
            an array as a tensor of its parameters' type.
        loss: bounded; a name such as "clipped-square=4"; of labels the 0-1 loss and of numbers 1 - exp(-e^2) when None.
        source: where the prior, or a predictor, came from, as seen from these rows: see `bounds.Provenance`.
        independent: declares that the rows are independent draws of one distribution.
        delta: probability with which the bound may fail.
        bound: a name, a reference or a record: of a posterior one by risk, variance, kl, n or beta, or "one-draw", of a
            list also "tandem", else the table's default; of a predictor a hold-out bound, else `bounds.holdout_for`.
        beta: of bounds at a temperature, fixed before the rows are seen.
        sample: draws a predictor from a `torch.Generator`; a module without one draws whenever it is called.
        kl: KL(model || prior) in nats, or a function of both that gives it; "one-draw" needs none.
        log_ratio: of "one-draw" ln dQ/dP in nats, Q the posterior: a function of what `sample` gives, or a number where
            the model is the one predictor that was drawn.
        weights: of the predictors of a list [J].
        draws: hypotheses that estimate the risk of a posterior that cannot be listed.
        draws_delta: share of delta that the estimate may fail with.
        tried: number of models among which these rows chose; None when nobody counted.
        seed: of the draws; "one-draw" is on sample(torch.Generator().manual_seed(seed)).

    Returns:
        The certificate; without the premises it says why it is none.

    Raises:
        AssumptionError: when the divergence is not known or infinite, a prediction is NaN or made by other rows, all
            draws are the same, the loss is for other predictions or leaves its range, or the bound is for other models.
        ShapeError: when there are not as many targets as inputs, or no row.

    Example:
        >>> import numpy as np, pacbayes_fl as fl
        >>> x = np.linspace(-1, 1, 200)[:, None]
        >>> sign = lambda x: np.stack([-x[:, 0], x[:, 0]], 1)
        >>> rows = x, (x[:, 0] > 0.1).astype(int)
        >>> print(fl.certify_model(sign, rows=rows, source="data-free", independent=True).valid)
        True
    """
    inputs, targets, chosen = _checked(rows, loss)
    known = hypotheses_of(model, prior, sample, kl, weights, inputs, counts_errors(chosen), log_ratio)
    y, repeats = _indexed(targets, known.classes), _repeats(keys := keys_of(inputs), targets)
    premises = Premises(_of_copies(source, repeats), independent, chosen, tried=tried)
    record, generator = _bound_of(known, bound, chosen), _seeded(seed)
    known, ratio = _drawn_once(known, generator) if "log_ratio" in record.needs else (known, None)
    drawn, kind = _weighed(known, draws, generator), _kind_of(known, sample, kl, generator)
    made = _measured(_each_loss(drawn, inputs, keys, y, chosen, kind), repeats, chosen, known.draw is not None)
    share = float(checked("draws_delta", draws_delta, 0.0) * checked("delta", delta, 0.0))
    estimate = None if known.draw is None else MonteCarlo(draws, share, made.risks, made.variances)
    return _bounded(record, made, repeats, (known.kl, beta, ratio), (delta, premises, estimate))


def _bounded(
    record: Bound,
    made: _Measured,
    repeats: Repeats,
    known: tuple[float, float | None, float | None],
    rest: tuple[float, Premises, MonteCarlo | None],
) -> Certificate:
    """Apply the bound to what was measured and to KL, beta and log ratio; `rest` is delta, premises and estimate."""
    if record.fixed:
        return _of_fixed(record, made, repeats, *rest[:2])
    numbers = dict(zip(("kl", "beta", "log_ratio"), known, strict=True))
    return record.certify({**made._asdict(), "n": repeats.n.squeeze(0), **numbers}, *rest)


def _drawn_once(known: Hypotheses, generator: torch.Generator) -> tuple[Hypotheses, float | None]:
    """Draw the one predictor of a bound on one draw, which is then all that is listed, and ln dQ/dP there."""
    if known.one is None:
        return known, None
    single, ratio = known.one(generator)
    if ratio == math.inf:
        raise AssumptionError("the prior never draws the predictor that was drawn: ln dQ/dP is infinite", hint=_NEVER)
    return known._replace(draw=None, listed=[(1.0, single)]), ratio


class _Measured(NamedTuple):
    """Numbers of a model on the rows of the bound, float64.

    Args:
        losses: averaged over hypotheses [n].
        risk: averaged over hypotheses, on whichever rows that may be own draws make it largest [].
        variance: of the losses over rows, averaged over hypotheses, or more [].
        risks: of every hypothesis, on its own such rows [M].
        variances: of every hypothesis, or more [M].
        tandem_risk: of 0-1 losses of a list the share of rows that two independent hypotheses both miss []: the mean
            over rows of E[l]^2, on whichever rows that may be own draws make it largest.
    """

    losses: Tensor
    risk: Tensor
    variance: Tensor
    risks: Tensor
    variances: Tensor
    tandem_risk: Tensor


def _measured(each: Iterator[tuple[float, Tensor]], repeats: Repeats, loss: BoundedLoss, drawn: bool) -> _Measured:
    """Take the numbers of hypotheses from their weights and losses [n], one after another.

    The risk of draws is the mean of theirs, which pay for it, and no less than that of the losses' means.
    """
    plain, total = not bool(repeats.left_out.any()), torch.zeros(1, dtype=torch.float64)
    weights, risks, variances = [], [], []
    for weight, own in each:
        total = total + weight * own
        weights.append(weight)
        risks.append(repeats.risk(own.unsqueeze(0)).squeeze(0))
        variances.append(own.var(correction=0) if plain else largest_variance(risks[-1], loss))
    own, varied = torch.stack(risks), torch.stack(variances)
    risk = own.mean() if drawn else repeats.risk(total.unsqueeze(0)).squeeze(0)
    variance = (torch.tensor(weights, dtype=torch.float64) * varied).sum()
    tandem = repeats.risk(total.square().unsqueeze(0)).squeeze(0)
    return _Measured(total, risk, torch.minimum(variance, largest_variance(risk, loss)), own, varied, tandem)


def _bound_of(known: Hypotheses, bound: str | Bound | None, loss: BoundedLoss) -> Bound:
    """Take the bound that was asked for, or that of the kind of model; refuse one of which a number is not known."""
    fixed, measured = known.listed is not None and len(known.listed) == 1, math.isfinite(known.kl)
    if known.kl == math.inf and not fixed and (bound is None or "kl" in bounds.bound_named(bound).needs):
        raise AssumptionError("the model draws what its prior never does: their KL divergence is infinite", hint=_NEVER)
    if bound is None:
        return bounds.holdout_for(loss) if fixed else bounds.bound_named(DEFAULT if measured else ONE_DRAW.name)
    record = bounds.bound_named(bound)
    own = {*(_LISTED if known.listed is not None and not fixed else _MEASURED[fixed])}
    own = (own if measured else own - {"kl"}) | ({"log_ratio"} if known.one is not None and not fixed else set())
    unknown = [name for name in record.needs if name not in own]
    if record.fixed == fixed and not unknown:
        if "tandem_risk" in record.needs and not counts_errors(loss):
            what = f"the bound {record.name!r} is on a vote, which has errors, and {loss.name} is no 0-1 loss"
            raise AssumptionError(what, hint="labels and loss = '0-1', or another bound")
        return record
    what = f"the bound {record.name!r} needs {', '.join(unknown)}, which certify_model does not know of a model"
    if record.fixed != fixed:
        kinds = "a posterior", "one predictor that is fixed"
        what = f"the bound {record.name!r} is on {kinds[record.fixed]}, and the model is {kinds[fixed]}"
    others = [name for name, each in bounds.BOUNDS.items() if each.fixed == fixed and own.issuperset(each.needs)]
    hint = f"take one of {', '.join(others)}; others are functions of numbers, in `bounds`"
    if record.fixed == fixed and "log_ratio" in unknown:
        hint = f"sample=lambda generator: h, log_ratio=lambda h: ln q(h) - ln p(h); or {hint}"
    raise AssumptionError(what, hint=hint)


def _of_fixed(bound: Bound, made: _Measured, repeats: Repeats, delta: float, premises: Premises) -> Certificate:
    n = repeats.n.squeeze(0)
    if not bound.counts and "losses" not in bound.needs:
        return bound.certify({"risk": made.risk, "n": n}, delta, premises)  # the largest risk, the fewest rows
    own, doubtful = (each.squeeze(0) for each in repeats.ordered(made.losses.unsqueeze(0)))
    return of_losses(bound, own, n, doubtful, delta, premises)


def _checked(rows: tuple[Any, Any] | None, loss: BoundedLoss | str | None) -> tuple[Any, Any, BoundedLoss]:
    """Take inputs and targets, and the loss of their task where none is given."""
    if rows is None:
        raise AssumptionError("rows must be given: inputs and targets that the prior has not seen")
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        got = f"{len(rows)} of them" if isinstance(rows, tuple | list) else f"a {type(rows).__name__}"
        what = f"rows must be two, inputs and targets, got {got}"
        raise AssumptionError(what, hint="rows count alike, without weights; of a data set give both as arrays")
    if not hasattr(inputs := rows[0], "__len__") or hasattr(inputs, "toarray") or getattr(inputs, "is_sparse", False):
        what = f"the inputs in rows must be an array, a tensor or a list with a row each, got a {type(inputs).__name__}"
        raise AssumptionError(what, hint="inputs.toarray() or .to_dense() of a sparse table, list(inputs) of others")
    targets = array_of(rows[1])
    if len(inputs) != len(targets) or not len(targets) or targets.ndim != 1:
        raise ShapeError(f"rows must be as many inputs as targets, got {len(inputs)} and targets {targets.shape}")
    labels = not np.issubdtype(targets.dtype, np.floating)
    if not labels and (missing := np.isnan(targets)).any():
        which = f"{int(missing.sum())} of {len(targets)} rows, row {int(missing.argmax())} first"
        raise AssumptionError(f"targets must be numbers, got NaN in {which}", hint="leave such rows out")
    chosen = loss_of(loss) if isinstance(loss, str) else loss
    chosen = (ZeroOne() if labels else bounds.SaturatingSquare()) if chosen is None else chosen
    require_parts(chosen)
    numbers, own = hasattr(chosen, "expected"), not of_library(chosen)
    if numbers if labels else not (numbers or own):  # of a loss of the caller's own nobody but them knows
        what = f"{chosen.name} is not for {'labels' if labels else 'real targets'}, got targets of type {targets.dtype}"
        raise AssumptionError(what, hint="'saturating-square' is for targets that are floats" if labels else AS_LABELS)
    return inputs, targets, chosen


def _weighed(known: Hypotheses, draws: int, generator: torch.Generator) -> Any:
    draws = int(whole("draws", draws))
    if known.draw is None:
        yield from known.listed or ()
        return
    for one in known.draw(draws, generator):
        yield 1.0 / draws, one


def _indexed(targets: Any, classes: Any) -> Tensor:
    """Take labels as places in the order of the scores; -1 for one that the model does not know, which is an error."""
    if np.issubdtype(targets.dtype, np.floating):
        if classes is not None:
            what = f"the model is a classifier, whose labels are {shown(classes)}, got targets of type {targets.dtype}"
            raise AssumptionError(what, hint=AS_LABELS)
        return torch.from_numpy(targets.astype(np.float64))
    if classes is None:
        if not np.issubdtype(targets.dtype, np.integer) and targets.dtype != np.bool_:
            what = f"labels of a model that does not name its own must be whole numbers 0, 1, ..., got {targets.dtype}"
            raise AssumptionError(what, hint="number them in the order of the model's scores")
        return torch.from_numpy(targets.astype(np.int64))
    place = {label: at for at, label in enumerate(np.asarray(classes).tolist())}
    return torch.tensor([place.get(label, -1) for label in targets.tolist()])


def _repeats(keys: list[object], targets: Any) -> Repeats:
    seen: dict[object, int] = {}
    pairs = zip(keys, targets.tolist(), strict=True)
    return Repeats(torch.tensor([[seen.setdefault(pair, len(seen)) for pair in pairs]]), False)


def _of_copies(source: Source | Provenance, repeats: Repeats) -> Provenance:
    """Let a prior that was private in single rows pay for rows that may be copies, of which all change together.

    c copies of a draw move it by c epsilon, and what it costs is a function of the sum of such squares over draws: of
    as many rows as sum c^2, beside those that the mechanism saw and the bound has not.
    """
    prior = source if isinstance(source, Provenance) else Provenance(source)
    times = repeats.cluster.flatten().bincount()
    more = int((times * (times - 1)).sum())
    if prior.source != "row-level DP" or not more:
        return prior
    return replace(prior, rows=(prior.rows or int(times.sum())) + more)


class _Kind(NamedTuple):
    """What is not known of hypotheses but by what they say.

    Args:
        told: whether that they are drawn is the caller's word alone.
        fixed: whether each is a predictor that says the same of a row at every call.
        listed: whether each was given, and not drawn.
        still: whether a sampler has left its generator alone so far.
    """

    told: bool
    fixed: bool
    listed: bool
    still: Callable[[], bool]


def _kind_of(known: Hypotheses, sample: object, kl: object, generator: torch.Generator) -> _Kind:
    start = generator.get_state()
    return _Kind(
        told=sample is not None or kl is not None,
        fixed=kl is None or sample is not None,
        listed=known.listed is not None,
        still=lambda: sample is not None and torch.equal(generator.get_state(), start),
    )


def _seeded(seed: object) -> torch.Generator:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise AssumptionError(f"seed must be a whole number from 0, got {shown(seed)}")
    return torch.Generator().manual_seed(int(seed))


def _each_loss(
    each: Iterator[tuple[float, Predict]], inputs: Any, keys: list[object], y: Tensor, loss: Any, kind: _Kind
) -> Iterator[tuple[float, Tensor]]:
    """Yield weight and losses [n] of hypotheses; refuse them by what they say of some rows, or one beside the other.

    What one has done to the inputs is refused where others followed.
    """
    count, asked, first, alike, fine, again = 0, 0, None, kind.told, True, asked_again(inputs)
    for weight, one in each:
        said = said_of(one, inputs, y, loss)
        first = said if first is None else first
        if kind.fixed and weight > 0 and (kind.listed or count & (count - 1) == 0):  # of draws the 1st, 2nd, 3rd, 5th
            try:
                require_fixed(one, again, said, y, brief=asked >= _FULLY)
            except AssumptionError:
                _require_same_inputs(inputs, keys, count)  # of which it may know nothing
                raise
            asked += 1
        if not kind.fixed and count == 0:
            with torch.random.fork_rng(devices=[]):
                require_alone_on_average(one, again, y)
        alike, fine = alike and torch.equal(said, first), fine and _is_fine(said, y)
        yield weight, _losses(said, y, loss)
        count += 1
    _require_same_inputs(inputs, keys, count - 1)
    if count > 1 and alike and (fine or kind.still()):
        what = f"a posterior must be drawn from, and all {count} draws of the model predict the same to the last digit"
        hint = "layers that draw while training alone need module.train(), dropout and batch norms in evaluation mode"
        told = "; sample(generator) must draw by the generator, which it left alone" if kind.still() else ""
        raise AssumptionError(what, hint=f"{hint}{told}; leave sample and kl out of one predictor, which has no KL")


def _require_same_inputs(inputs: Any, keys: list[object], before: int) -> None:
    """Refuse what hypotheses have done to the inputs of those that followed."""
    if before > 0 and keys_of(inputs) != keys:
        what = "a hypothesis changed the inputs that it was given, which those after it were given too"
        raise AssumptionError(what, hint="let each work on a copy, such as StandardScaler(copy=True)")


def _is_fine(said: Tensor, y: Tensor) -> bool:
    """Whether draws of weights cannot agree in what they say of all rows, as they can in labels."""
    return said.dim() == 2 or y.is_floating_point()


def _losses(said: Tensor, y: Tensor, loss: Any) -> Tensor:
    """Loss of one hypothesis on every row [n], float64."""
    if y.is_floating_point():
        return row_by_row(loss, loss, torch.ones_like(y, dtype=torch.bool), said.double(), y).detach()
    if said.dim() == 1:
        if not counts_errors(loss):
            raise AssumptionError(f"{loss.name} needs probabilities, and the model gives labels alone")
        return (said.long() != y).double()
    unknown = (y < 0) | (y >= said.shape[1])
    losses = row_by_row(loss, loss, ~unknown, said, y.clamp(0, said.shape[1] - 1)).detach()
    return torch.where(unknown, loss.high, losses)

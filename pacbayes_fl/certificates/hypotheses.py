"""What a certificate of a model needs: its hypotheses, one at a time, and its divergence from the prior."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import vector_to_parameters

from pacbayes_fl.bounds import discrete_kl, full_gaussian_kl
from pacbayes_fl.bounds.checks import ROUNDING
from pacbayes_fl.certificates import ratios
from pacbayes_fl.certificates.aliasing import require_apart
from pacbayes_fl.certificates.guides import (
    draws_of,
    is_plate,
    kl_of,
    log_ratio_of,
    played,
    require_independent,
    require_prior_alone,
)
from pacbayes_fl.certificates.laplace_gaussians import gaussian_of, learned_beside, left_alone, uncertain
from pacbayes_fl.errors import AssumptionError, shown

Predict = Callable[[Any], Any]
"""Turns inputs into scores or log probabilities [n, C], labels [n], real predictions [n], or a torch distribution."""


Drawing = Callable[[torch.Generator], tuple[Predict, float]]
"""Draws a predictor with a generator, and gives ln dQ/dP there, in nats."""


class Hypotheses(NamedTuple):
    """A distribution over predictors, or a single one.

    Args:
        draw: gives as many predictors as are asked for, drawn with a generator; None where they are listed.
        listed: all predictors with their weights; None where they are drawn.
        kl: divergence from the prior, in nats; NaN where only the density ratio of one draw is known.
        classes: labels in the order of the scores; None where they are 0, 1, ...
        one: draws a single predictor with a generator, and gives ln dQ/dP there in nats; None where it is not known.
    """

    draw: Callable[[int, torch.Generator], Iterator[Predict]] | None
    listed: Sequence[tuple[float, Predict]] | None
    kl: float
    classes: Any = None
    one: Drawing | None = None


def hypotheses_of(
    model: Any,
    prior: Any,
    sample: Any,
    kl: Any,
    weights: Any,
    inputs: Any,
    by_label: bool = False,
    log_ratio: Any = None,
) -> Hypotheses:
    """Find out how a model is drawn from, and how far it is from its prior; see `certify_model`.

    Args:
        model: any of those that `certify_model` takes.
        prior: of the same kind, or None.
        sample: gives a predictor from a generator, where the caller knows how.
        kl: in nats, or what gives it.
        weights: of a list of predictors.
        inputs: of the rows, on which programs are traced.
        by_label: whether estimators are asked for the labels that they give, and not for probabilities.
        log_ratio: ln dQ/dP in nats: a function of what `sample` gives, or a number of the one that the model is.

    Returns:
        The hypotheses.

    Raises:
        AssumptionError: when the divergence cannot be known.
    """
    require_apart(model, prior, kl, weights)
    if log_ratio is not None and not callable(log_ratio):
        return _drawn_before(model, sample, kl, log_ratio, by_label)
    if sample is not None or kl is not None or log_ratio is not None:
        return _told(model, prior, sample, kl, by_label, log_ratio)
    if isinstance(model, list | tuple):
        return _listed(model, weights, prior, by_label)
    if weights is not None:
        raise AssumptionError("weights are of a list of predictors", hint="certify_model([tree, tree], weights=...)")
    if type(model).__module__.split(".")[0] == "laplace":
        return _laplace(model, prior)
    if prior is not None and hasattr(model, "coef_") and hasattr(model, "sigma_") and np.ndim(model.sigma_) == 2:
        return _bayesian_ridge(model, prior)
    if prior is not None and callable(model) and callable(prior) and not hasattr(model, "predict"):
        return _guide(model, prior, inputs)
    if prior is not None:
        raise _not_known(model)
    classes = _classes(model)
    return Hypotheses(None, [(1.0, predictor(model, by_label, classes))], 0.0, classes)


def predictor(model: Any, by_label: bool = False, classes: Sequence[Any] | None = None) -> Predict:
    """Make one function of a fixed model: log probabilities of a scikit-learn classifier, else what it says.

    Args:
        model: a fitted estimator, a module, or a function.
        by_label: whether an estimator is asked for the labels that it gives, which need not be the most probable ones.
        classes: labels in the order of the scores, among which are those of the model; 0, 1, ... when None.

    Returns:
        The function; its labels are places among the classes.

    Raises:
        AssumptionError: when it is none of these, or knows a label that is not among the classes.
    """
    if (own := _classes(model)) is not None and hasattr(model, "predict"):
        place = _places(own, classes)
        if by_label or not hasattr(model, "predict_proba"):
            return lambda x: np.array([place[label] for label in np.asarray(model.predict(x)).tolist()])
        return partial(_log_probs, model, [*place.values()], len(classes or ()))
    if hasattr(model, "predict_proba"):
        return lambda x: np.log(np.maximum(model.predict_proba(x), np.finfo(np.float64).tiny))
    if hasattr(model, "predict"):
        return lambda x: model.predict(x)
    if isinstance(model, nn.Module):
        return partial(_evaluated, model)
    if not callable(model):
        raise AssumptionError(f"{type(model).__name__} predicts nothing", hint="an estimator, a module or a function")
    result: Predict = model
    return result


def _classes(model: Any) -> list[Any] | None:
    """Labels that a classifier knows, in the order of its scores; None of any other model."""
    own = getattr(model, "classes_", None)
    return None if own is None else np.asarray(own).tolist()


def _places(own: Sequence[Any], classes: Sequence[Any] | None) -> dict[Any, int]:
    """Where the labels of one classifier stand among those of all hypotheses."""
    if classes is not None:
        where = {label: at for at, label in enumerate(classes)}
        if unknown := [label for label in own if label not in where]:
            raise AssumptionError(f"a classifier that was drawn knows the label {unknown[0]!r}, and the model does not")
        return {label: where[label] for label in own}
    if not all(isinstance(label, int) and label >= 0 for label in own):
        what = f"classifiers that are drawn must have labels 0, 1, ..., got {own[0]!r}"
        raise AssumptionError(what, hint="give as the model a fitted classifier that knows all labels")
    return {label: int(label) for label in own}


def _log_probs(model: Any, place: Sequence[int], count: int, x: Any) -> Any:
    """Log probabilities [n, C] of a classifier that may know some of the classes alone."""
    known = model.predict_proba(x)
    result = np.zeros((len(known), max(count, 1 + max(place))))
    result[:, [*place]] = known
    return np.log(np.maximum(result, np.finfo(np.float64).tiny))


def _evaluated(model: nn.Module, x: Any) -> Any:
    """Call a module without its dropout, and leave every layer in the mode that it had."""
    training = [each for each in model.modules() if each.training]
    result = _called(model.eval(), x)
    for each in training:
        each.training = True
    return result


def _called(model: nn.Module, x: Any) -> Any:
    """Call a module as it is, numbers being given as a tensor of the type of its parameters."""
    like: Tensor | None = next((each for each in model.parameters() if each.is_floating_point()), None)
    if isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
        like, x = torch.empty(0) if like is None else like, torch.as_tensor(x)
    if isinstance(x, Tensor) and like is not None:
        x = x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
    with torch.no_grad():
        return model(x)


def _not_known(model: Any) -> AssumptionError:
    what = f"how a {type(model).__name__} is drawn from, and its KL divergence from the prior, are not known"
    return AssumptionError(what, hint="give sample and kl; or leave the prior out for a predictor that is fixed")


def _drawn_before(model: Any, sample: Any, kl: object, log_ratio: Any, by_label: bool) -> Hypotheses:
    """Take a predictor that the caller has drawn from a posterior, once, and ln dQ/dP there."""
    if sample is not None or kl is not None:
        what = "log_ratio as a number is of the one drawn predictor that the model is, got sample or kl beside it"
        raise AssumptionError(what, hint="leave them out; or log_ratio=lambda h: ..., a function of what sample gives")
    classes, value = _classes(model), ratios.known_before(log_ratio)
    known = predictor(model, by_label, classes)
    return Hypotheses(None, None, math.nan, classes, lambda generator: (known, value))


def _told(model: Any, prior: Any, sample: Any, kl: object, by_label: bool, log_ratio: Any) -> Hypotheses:
    """Take the sampler and the divergence from the caller; a module without a sampler draws whenever it is called."""
    if kl is None and log_ratio is None:
        hint = "kl = a number, or a function; of one draw log_ratio = a function of what sample gives"
        raise AssumptionError("a sampler without a divergence certifies nothing", hint=hint)
    if sample is not None:
        _require_sampler(sample)
    elif log_ratio is not None:
        what = "log_ratio as a function is of what sample gives, got no sample"
        raise AssumptionError(
            what, hint="sample=lambda generator: ...; or the number at a drawn predictor as the model"
        )
    value = math.nan if kl is None else max(_nats(kl(model, prior) if callable(kl) else kl), 0.0)
    classes = _classes(model)
    if sample is None and isinstance(model, nn.Module):
        norms = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm) and each.training]
        if norms:
            what = f"the layer {norms[0]!r} normalises by the rows that are predicted, so that no row is alone"
            raise AssumptionError(what, hint="batch norms alone in evaluation mode: layer.eval()")

    def draw(count: int, generator: torch.Generator) -> Iterator[Predict]:
        for _ in range(count):
            if sample is not None:
                yield predictor(sample(generator), by_label, classes)
                continue
            with torch.random.fork_rng(devices=[]):
                torch.random.set_rng_state(_state(generator))  # for what draws from torch's own generator
                yield partial(_called, model) if isinstance(model, nn.Module) else model

    def one(generator: torch.Generator) -> tuple[Predict, float]:
        ratios.require_likely(sample, log_ratio)  # before, as a sampler may fill one network again and again
        drawn = sample(generator)
        return predictor(drawn, by_label, classes), ratios.number_of(log_ratio(drawn))

    return Hypotheses(draw, None, value, classes, None if log_ratio is None else one)


def _nats(said: Any) -> float:
    try:
        value = float(_no_truth_value(said.detach() if isinstance(said, Tensor) else said))
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"kl must be a number of nats, or a function of model and prior that gives it, got {shown(said)}"
        raise AssumptionError(what, hint="of parts the divergences add up: their sum") from error
    if not -ROUNDING <= value < math.inf:
        raise AssumptionError(f"kl must be finite and at least 0, got {value:g}")
    return value


def _require_sampler(sample: Any) -> None:
    try:
        inspect.signature(sample).bind(torch.Generator())
    except TypeError as error:
        what = f"sample must be a function of a torch.Generator that gives one hypothesis, got {shown(sample)}"
        raise AssumptionError(what, hint="sample=lambda generator: ..., which draws by that generator alone") from error
    except ValueError:  # of code that says nothing of its arguments
        return


def _no_truth_value(said: Any) -> Any:
    if isinstance(said, bool | np.bool_) or (isinstance(said, Tensor) and said.dtype == torch.bool):
        raise TypeError("a truth value is no number of nats")
    return said


def _state(generator: torch.Generator) -> Tensor:
    """Return a generator's state that is drawn from another."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator))).get_state()


def _listed(models: Sequence[Any], weights: Any, prior: Any, by_label: bool) -> Hypotheses:
    """Weigh a list of predictors: uniformly, as the prior does, unless it is told otherwise."""
    if not models:
        raise AssumptionError("a list of predictors must have one at least")
    uniform = torch.full((len(models),), 1.0 / len(models), dtype=torch.float64)
    q, p = (uniform if each is None else torch.as_tensor(each, dtype=torch.float64) for each in (weights, prior))
    for name, each in (("weights", q), ("prior", p)):
        if each.shape != uniform.shape or bool((each < 0).any()) or abs(float(each.sum()) - 1.0) > 1e-6:
            raise AssumptionError(f"{name} must be {len(models)} numbers from 0 on that sum to 1, got {each.tolist()}")
    known = [own for one in models if (own := _classes(one)) is not None]
    if 0 < len(known) < len(models):
        what = "some predictors of the list are classifiers with labels of their own, and some are not"
        raise AssumptionError(what, hint="make each a function that gives scores in one order of the classes")
    classes = [*dict.fromkeys(label for own in known for label in own)] or None
    listed = [(weight, predictor(one, by_label, classes)) for weight, one in zip(q.tolist(), models, strict=True)]

    def one(generator: torch.Generator) -> tuple[Predict, float]:
        at = int(torch.multinomial(q, 1, generator=generator))
        return listed[at][1], float(q[at].log() - p[at].log())

    return Hypotheses(None, listed, discrete_kl(q, p).item(), classes, one)


def _laplace(posterior: Any, prior: Any) -> Hypotheses:
    """Take a posterior of laplace-torch, of all weights or of the last layer, from another or from its own prior."""
    mean, covariance = gaussian_of(posterior)
    if prior is None:
        raise AssumptionError(
            "a Laplace posterior is measured against a prior that has not seen the rows",
            hint="a posterior on other rows, or 'own' for its own prior, N(prior_mean, 1 / prior_precision)",
        )
    if isinstance(prior, str):
        if prior != "own" or type(posterior).__name__.endswith("LLLaplace"):
            what = f"prior = 'own' is for posteriors of all weights, got {prior!r} of {type(posterior).__name__}"
            raise AssumptionError(what, hint="the layers before the last have learned from rows: another posterior's")
        if learned_beside(posterior):
            raise AssumptionError(
                "prior = 'own' is of all weights, got frozen ones or averages of a batch norm, which rows may have set",
                hint="a posterior on the same network that was fitted on other rows; or give sample and kl",
            )
        at = torch.as_tensor(posterior.prior_mean).double().expand(mean.shape)
        other = at, torch.diag(1.0 / posterior.prior_precision_diag.double())
    else:
        other = gaussian_of(prior)
        fixed = [left_alone(one) for one in (posterior, prior)]
        if [each.shape for each in fixed[0]] != [each.shape for each in fixed[1]] or mean.shape != other[0].shape:
            what = "posterior and prior are uncertain of different weights: their divergence is infinite"
            raise AssumptionError(what, hint="both of all weights, or both of the last layer, of networks of one form")
        if not all(map(torch.equal, *fixed)):
            raise AssumptionError(
                "the weights without uncertainty differ between posterior and prior: their divergence is infinite",
                hint="fit both on one network, whose layers before the last have not seen the rows of the bound",
            )
    kl = full_gaussian_kl(mean, covariance, *other).item()
    network = copy.deepcopy(posterior.model)
    free = uncertain(posterior, network)

    def draw(count: int, generator: torch.Generator) -> Iterator[Predict]:
        for theta in posterior.sample(count, generator=generator):
            vector_to_parameters(theta, free)
            yield predictor(network)

    def one(generator: torch.Generator) -> tuple[Predict, float]:
        theta = posterior.sample(1, generator=generator)[0]
        vector_to_parameters(theta, free)
        return predictor(network), ratios.of_gaussians(theta, (mean, covariance), other)

    return Hypotheses(draw, None, kl, one=one)


def _bayesian_ridge(posterior: Any, prior: Any) -> Hypotheses:
    """Take scikit-learn's Bayesian linear regression, N(coef_, sigma_) and an intercept that is known, from another."""
    if not (hasattr(prior, "coef_") and hasattr(prior, "sigma_")):
        what = f"the prior of a {type(posterior).__name__} must be one that was fitted on other rows, got {prior}"
        raise AssumptionError(what)
    if float(posterior.intercept_) != float(prior.intercept_):
        raise AssumptionError(
            f"the intercepts differ, {posterior.intercept_:g} and {prior.intercept_:g}: neither is uncertain",
            hint="fit_intercept = False, with targets centred by other rows or a column of ones",
        )
    kept = _kept(posterior)
    if posterior.coef_.shape != prior.coef_.shape or not np.array_equal(kept, _kept(prior)):
        what = "posterior and prior have other features, or have pruned others: their divergence is infinite"
        raise AssumptionError(what, hint="fit both on the same columns, or BayesianRidge, which prunes none")
    parts = [part for one in (posterior, prior) for part in (one.coef_[kept], one.sigma_)]
    gaussians = [torch.from_numpy(np.asarray(part)) for part in parts]
    mean, covariance, *other = (each.double() for each in gaussians)
    root = torch.linalg.cholesky(covariance)

    def one(generator: torch.Generator) -> tuple[Predict, float]:
        theta = mean + root @ torch.randn(len(mean), generator=generator, dtype=torch.float64)
        coef = np.zeros(posterior.coef_.shape)
        coef[kept] = theta.numpy()
        ratio = ratios.of_gaussians(theta, (mean, covariance), (other[0], other[1]))
        return partial(_linear, coef, float(posterior.intercept_), type(posterior).__name__), ratio

    def draw(count: int, generator: torch.Generator) -> Iterator[Predict]:
        for _ in range(count):
            yield one(generator)[0]

    return Hypotheses(draw, None, full_gaussian_kl(*gaussians).item(), one=one)


def _kept(one: Any) -> Any:
    """Features [d] that a regression has not pruned, bool: those that its covariance is of."""
    if len(one.sigma_) == len(one.coef_):
        return np.ones(len(one.coef_), dtype=bool)
    return one.lambda_ < one.threshold_lambda


def _linear(coef: Any, intercept: float, kind: str, x: Any) -> Any:
    inputs = np.asarray(x)
    if inputs.ndim != 2 or inputs.shape[1] != len(coef):
        what = f"inputs of a {kind} must be [n, {len(coef)}], as those to which it was fitted, got {list(inputs.shape)}"
        raise AssumptionError(what, hint="rows=(inputs, targets), with the columns of the fit in their order")
    return inputs @ coef + intercept


def _guide(guide: Any, model: Any, inputs: Any) -> Hypotheses:
    """Take a Pyro guide over a program of inputs that observes one site; the KL divergence is that of its sites."""
    try:
        traces = [*draws_of(guide, inputs)]
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(guide, nn.Module) and not isinstance(guide, PyroModule):  # a network, for which this is no input
            raise _not_known(guide) from error
        raise
    if not any(site["type"] == "sample" and not is_plate(site) for site in traces[0].nodes.values()):
        raise _not_known(guide)
    values = [kl_of(model, inputs, drawn) for drawn in traces]
    require_independent(*values)
    if not -ROUNDING <= values[0] < math.inf:
        raise AssumptionError(f"the KL divergence of the guide from the program is {values[0]:g}")
    require_prior_alone(model, inputs, traces[0])

    def predict(drawn: Any, x: Any) -> Any:  # a prior may go by the number of rows
        return played(model, drawn, x, values[0] if len(x) == len(inputs) else None)

    def draw(count: int, generator: torch.Generator) -> Iterator[Predict]:
        for _ in range(count):
            yield partial(predict, _traced(guide, inputs, _state(generator)))

    def one(generator: torch.Generator) -> tuple[Predict, float]:
        drawn = _traced(guide, inputs, generator.get_state())  # which is torch.manual_seed's of the same seed
        return partial(played, model, drawn), log_ratio_of(model, inputs, drawn)

    return Hypotheses(draw, None, max(values[0], 0.0), one=one)


def _traced(guide: Any, inputs: Any, state: Tensor) -> Any:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(state)
        return poutine.trace(guide).get_trace(inputs)

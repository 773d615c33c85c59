"""Scores, predictions and learning curves of classifiers: personal models ("pm") and the global model ("gm")."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import personalisation
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.personalisation import Then
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import ClassPredictive
from pacbayes_fl.results.client_rows import GROUPS, ClientRows
from pacbayes_fl.results.metrics import MEAN_WEIGHTS, MODELS, VALIDATION, Metric, headline
from pacbayes_fl.results.recorded import ENTROPY
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.report import Report, notes, state_of
from pacbayes_fl.study.evaluate.units import scored_rows

_BINS = 20  # of a histogram of entropy
_CLIENTS = 5  # that have one
_LAST = 100  # rounds among which the papers take the best one
_VALUES = 2**23  # input numbers predicted in one go: it bounds the activations in memory


def predictive(posterior: Any, x: Tensor, at_mean: bool = False) -> ClassMixture:
    """Predict labels, a block of rows at a time; all blocks see the same draws of the weights.

    Args:
        posterior: of K clients.
        x: inputs [K, N, *feature].
        at_mean: take the mean weights instead of the average over draws.

    Returns:
        Probabilities [K, N, C].
    """
    predict = posterior.predict_at_mean if at_mean else posterior.predict
    step = max(1, _VALUES // max(1, x[:, 0].numel()))
    return ClassMixture(torch.cat([predict(block).log_probs for block in x.split(step, 1)], 1))


def _models(
    method: AnyMethod, state: FederationState, train: ClientBatch, plan: FederationPlan, then: Then
) -> Iterator[tuple[str, Tensor, Any]]:
    """Yield the name of a model, positions [k] of clients, and what is made of its posterior for them."""
    for name, result in zip(MODELS, (personalisation.personalise, personalisation.global_models), strict=True):
        for index, made in result(method, state, train, plan, then):
            yield name, index, made


def evaluate(
    method: AnyMethod,
    state: FederationState,
    group: str,
    scaled: ScaledGroup,
    plan: FederationPlan,
    metrics: Mapping[str, Metric],
) -> Report:
    """Score the personal model of every client of a group, and the global model if there is one, on its test rows.

    Probabilities are averaged over all draws of the weights ("pm.accuracy" and so on), and taken at the mean weights
    ("pm.mean_weights.accuracy") where the weights are uncertain.

    Args:
        method: the algorithm.
        state: after some round.
        group: "existing" or "new".
        scaled: the group's rows.
        plan: gives chunk, waste and seed.
        metrics: what to score by, from `study.evaluate.report.metrics_of`.

    Returns:
        A row per client, and the probabilities of its test rows, NaN in padding.
    """
    test = scaled.test
    columns: dict[str, Tensor] = {}
    probs: dict[str, Tensor] = {}

    def score(prefix: str, index: Tensor, rows: ClientBatch, predictions: ClassPredictive) -> None:
        for name, metric in metrics.items():
            values = metric(predictions, rows.y, rows.mask)
            columns.setdefault(f"{prefix}.{name}", values.new_full((test.clients,), torch.nan))[index] = values

    def both(index: Tensor, posterior: Any) -> tuple[ClassMixture, ClassMixture | None]:
        x = scored_rows(scaled, index).x
        averaged = predictive(posterior, x)
        personalisation.tell_of(posterior)
        return averaged, predictive(posterior, x, at_mean=True) if posterior.uncertain else None

    state = state_of(method, state, group, scaled)
    for model, index, (predictions, at_mean) in _models(method, state, scaled.train, plan, both):
        rows = scored_rows(scaled, index)
        score(model, index, rows, predictions)
        if at_mean is not None:
            score(f"{model}.{MEAN_WEIGHTS}", index, rows, at_mean)
        shape = (*test.y.shape, predictions.probs.shape[-1])
        none = torch.full(shape, torch.nan, dtype=torch.float32, device=test.x.device)
        blank = probs.setdefault(f"{group}.{model}.probs", none)
        blank[index, : rows.mask.shape[1]] = torch.where(rows.mask.unsqueeze(-1), predictions.probs.float(), torch.nan)
    lists = {name: column.double().cpu().numpy() for name, column in columns.items()}
    rows_out = ClientRows.of_group(group, test.ids, test.names, (int(m) for m in scaled.train.size.tolist()), lists)
    return Report(rows_out, {f"{group}.y_test": test.y, f"{group}.mask_test": test.mask} | probs)


def curve(method: AnyMethod, state: FederationState, scaled: ScaledGroup, plan: FederationPlan) -> dict[str, Tensor]:
    """Take the headline metric of existing clients' models at their mean weights, whose means are a learning curve's.

    Args:
        method: the algorithm.
        state: after some round.
        scaled: rows of the existing clients.
        plan: gives chunk, waste and seed.

    Returns:
        "pm.accuracy" and "gm.accuracy" of every client [K] on test rows, the same with "validation." in front on
        validation rows; NaN for a client without.
    """
    metric = headline("classification")
    parts = {"": scaled.test} | ({} if scaled.validation is None else {f"{VALIDATION}.": scaled.validation})
    values: dict[str, list[Tensor]] = {}

    def scores(index: Tensor, posterior: Any) -> dict[str, Tensor]:
        chosen = {part: batch.select(index.cpu()) for part, batch in parts.items()}
        result = {part: predictive(posterior, rows.x, at_mean=True) for part, rows in chosen.items()}
        return {part: metric(result[part], rows.y, rows.mask) for part, rows in chosen.items()}

    for model, _, by_part in _models(method, state, scaled.train, plan, scores):
        for part, result in by_part.items():
            values.setdefault(f"{part}{model}.{metric.name}", []).append(result)
    return {name: torch.cat(result) for name, result in values.items()}


def histograms(
    method: AnyMethod,
    state: FederationState,
    scaled: ScaledGroup,
    plan: FederationPlan,
    own: Sequence[int] = range(_CLIENTS),
) -> dict[str, tuple[float, ...]]:
    """Sort the test rows of a few existing clients by how uncertain their personal model is.

    The entropy of the probabilities averaged over all draws, over ln C, in equal bins on [0, 1].

    Args:
        method: the algorithm.
        state: after some round.
        scaled: rows of the existing clients.
        plan: gives chunk, waste and seed.
        own: positions of the clients that may be looked at here.

    Returns:
        Shares of rows by bin, under "entropy.CLIENT".
    """
    if not (first := [k for k in own if k < min(_CLIENTS, scaled.train.clients)]):
        return {}
    subset = scaled.select(torch.tensor(first))
    state = state._replace(kept=Kept.of(state.kept, scaled.train.clients).subset(first))
    result = {}

    def predicted(index: Tensor, posterior: object) -> ClassMixture:
        return predictive(posterior, scored_rows(subset, index).x)

    for index, mixture in personalisation.personalise(method, state, subset.train, plan, predicted):
        rows = scored_rows(subset, index)
        share = mixture.entropy / math.log(mixture.probs.shape[-1])
        for name, values, mask in zip(rows.names, share.clamp(0.0, 1.0), rows.mask, strict=True):
            counts = torch.histc(values[mask].double().cpu(), _BINS, 0.0, 1.0)
            result[f"{ENTROPY}.{name}"] = tuple((counts / counts.sum()).tolist())
    return result


def selections(rounds: Sequence[RoundRecord]) -> JsonTable:
    """Results under other rules of choosing a round; the reported ones are those of the last round.

    Args:
        rounds: of a run, some of them evaluated.

    Returns:
        By model and rule the round and its test accuracy, at the mean weights; rules without a number are left out.
    """
    last = rounds[-1].round if rounds else 0
    score = headline("classification").name
    rules = {
        "best_validation": (f"{VALIDATION}.{{}}.{score}", 0, "the evaluated round with the best validation accuracy"),
        f"best_of_last_{_LAST}_test_rounds": (
            f"{{}}.{score}",
            last - _LAST,
            f"the papers' rule: the best of the evaluated rounds among the last {_LAST}; it looks at test rows",
        ),
    }
    out: JsonTable = {}
    for model in MODELS:
        for rule, (key, after, text) in rules.items():
            wanted = key.format(model)
            known = [r for r in rounds if r.round > after and math.isfinite(r.values.get(wanted, math.nan))]
            if known:
                best = max(known, key=lambda record: record.values[wanted])  # the first of equals
                value = best.values[f"{model}.{score}"]
                out.setdefault(model, {})[rule] = {"round": best.round, score: value, "rule": text}
    return out


def labels(
    method: AnyMethod, rows: ClientRows, rounds: Sequence[RoundRecord], metrics: Mapping[str, Metric]
) -> JsonTable:
    """Describe every number of a run (`labels.json`).

    Args:
        method: of the run.
        rows: of all groups.
        rounds: of the run.
        metrics: what was scored by, from `study.evaluate.report.metrics_of`.

    Returns:
        `labels.json`.
    """
    out: JsonTable = {
        "model": "pm: each client's own model; gm: the global model, as it is for that client",
        "rows": "test rows of every client",
        "evaluation_point": f"after the last round's aggregation; {method.personal_model}",
        "selection": "last round",
        "selections": selections(rounds),
        "rounds": "accuracies in rounds.jsonl are of existing clients at their mean weights, to be watched; entropies "
        "are of probabilities averaged over the draws",
    }
    out |= notes(metrics)
    every = [(rows.column(group, "kept"), rows.taken(group, "kept")) for group in GROUPS]
    kept = [value for own in every for value, taken in zip(*own, strict=True) if taken]
    return out | method.about() | ({"kept": math.fsum(kept) / len(kept)} if kept else {})

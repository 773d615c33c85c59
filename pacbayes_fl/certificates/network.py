"""The networks that a bound on one draw is about, as folders that can be given away and predict by themselves.

Certificate and network belong together: the bound is on the risk of these weights, whose rounding is that of the file,
on rows in these units. Its rows, and those of the training, stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.data.tables import Column
from pacbayes_fl.errors import UNREADABLE, AssumptionError, CheckpointError, DataError, PacBayesFLError, kinds_checked
from pacbayes_fl.federation.arrays import DTYPES
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.names import to_folder
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.tempered import tempered
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.results import sealed
from pacbayes_fl.results.certificates import CertifiedRun
from pacbayes_fl.study.config.models import KINDS, NetworkModel
from pacbayes_fl.study.evaluate.classification import predictive
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving.predict import AnyPrediction, ClassPrediction, Prediction

FORMAT_VERSION: Final = 1
KIND: Final = sealed.Kind("shipped network", "network.json", FORMAT_VERSION, "certify with --ship again")

_WEIGHTS: Final = "network.safetensors"


class Networks(NamedTuple):
    """Networks of the clients of a group that have a certificate, in the order of its lines.

    Args:
        weights: as they were drawn [K, D].
        units: to which their rows are brought, leaves [K, *].
    """

    weights: Tensor
    units: Scaling


@dataclass(frozen=True, eq=False)
class ShippedNetwork:
    """One network of one client, and what was certified of it.

    Args:
        client: its name.
        certificate: the client's line of the table of certificates, and what the table says of all: the bound and its
            theorem, delta, the risk. None stands for a number that there is not.
        about: model, columns, names of classes and the run that it is from.
        model: the likelihood.
        weights: theta [1, D].
        units: of the rows that the network takes, leaves [1, *].
        dtypes: of the rows that the network takes, and of those in the data's own units.
    """

    client: str
    certificate: JsonMapping
    about: JsonMapping
    model: WeightModel
    weights: Tensor
    units: Scaling
    dtypes: tuple[torch.dtype, torch.dtype]

    def predict(self, x: Tensor) -> AnyPrediction:
        """Predict labels or numbers with this network alone.

        argmax_c p_c(x; theta)^(1/T), whose 0-1 error is what a certificate of that loss bounds; or the mean of
        p(y | x; theta), whose error in units of `units.y_std` is what a loss of numbers takes

        Args:
            x: rows [M, *feature], in the data's own units and the order of `about["features"]`.

        Returns:
            A label a row, its probability, and the entropy of all in nats; or mean, standard deviation and central 95 %
            of a target, observation noise included, in the data's own units.

        Raises:
            DataError: when the rows have another shape, or a value that is not finite.
        """
        features, classes = tuple(self.units.x_mean.shape[1:]), self.about["classes"]
        if tuple(x.shape[1:]) != features:
            expected = ", ".join(map(str, features))
            raise DataError(f"rows to predict must be [M, {expected}], got {list(x.shape)}", client=self.client)
        blank = torch.zeros(len(x), dtype=torch.float64)
        own, raw = self.dtypes
        batch = ClientBatch.pad([(x, blank)], [self.client], dtype=raw, classes=classes, allow_empty=True)
        rows = self.units.apply(batch).to(dtype=own).x
        network = WeightPosterior(self.model, PointMass(self.weights), 1, Noise(0, 0, batch.ids))
        if classes is None:
            own_units = network.predict(rows[:, : len(x)]).rescale(self.units.y_mean, self.units.y_std)  # type: ignore[union-attr]
            lower, upper = own_units.quantile(own_units.mean.new_tensor([0.025, 0.975]))
            return Prediction(self.client, own_units.mean[0], own_units.variance[0].sqrt(), lower[0], upper[0])
        result = predictive(tempered(network, self.about["temperature"]), rows[:, : len(x)])
        top = result.probs[0].max(-1)
        return ClassPrediction(self.client, top.indices, top.values, result.entropy[0])


def check(trained: Trained, request: Request, folder: Path | str | None) -> None:
    """Refuse what cannot be shipped, before a bound is asked for and counted.

    Args:
        trained: the run.
        request: of the certificate.
        folder: for the networks; None where none are asked for.

    Raises:
        AssumptionError: when the bound is on no single network, or the model cannot predict without the run.
        StudyError: when the folder holds something, or lies in the run's.
    """
    if folder is None:
        return
    study, name = trained.study, request.record.name
    if "log_ratio" not in request.record.needs:
        what = f"the bound {name!r} is not on one drawn network, and only such a network can be shipped"
        raise AssumptionError(what, hint="--bound one-draw")
    model = study.model
    if not isinstance(model, NetworkModel) or model.kind not in KINDS:
        kind = getattr(model, "kind", "deep-kernel-gp")
        what = f"a network of this library can be shipped, and the model of {study.method.name} is {kind!r}"
        raise AssumptionError(what, hint="certify without --ship")
    if (transform := trained.groups["existing"].shared.transform) is not None:
        what = f"the network predicts transformed targets ({transform.name}), and is shipped without the way back"
        raise AssumptionError(what, hint="certify without --ship, or run with data.transform = 'none'")
    if any(group.inputs.numel() for group in trained.groups.values()):
        what = "summaries of the clients' training rows are inputs of the network, and no row of them is shipped"
        raise AssumptionError(what, hint="certify without --ship, or run with data.client_inputs = 'none'")
    if not trained.method.row_by_row:
        what = f"the network {model.kind!r} normalises by rows of the training, which cannot be shipped"
        raise AssumptionError(what, hint="certify without --ship, or run with another model.kind")
    sealed.check_new(Path(folder), trained.folder, KIND, "--ship")


def write(trained: Trained, table: CertifiedRun, groups: Mapping[str, Networks | None], folder: Path) -> list[Path]:
    """Write a folder for every line of a table.

    Args:
        trained: the run.
        table: its certificates.
        groups: networks of its lines, by group; None of one without lines.
        folder: for these folders.

    Returns:
        One folder a client, in the order of the lines.

    Raises:
        CheckpointError: when a file cannot be written.
    """
    result = []
    for group, networks in ((group, one) for group, one in groups.items() if one is not None):
        lines = [line for line in table.clients if line.group == group]
        for k, line in enumerate(lines):
            own = {name: leaf[k] for name, leaf in networks.units._asdict().items()} | {"weights": networks.weights[k]}
            about = _about(trained, group) | {"client": line.name, "certificate": table.of_client(line)}
            data = safetensors.torch.save(
                {name: leaf.detach().cpu().clone().contiguous() for name, leaf in own.items()}
            )
            result.append(folder / to_folder(line.name))
            sealed.write(result[-1], KIND, about, {_WEIGHTS: data})
    return result


def _about(trained: Trained, group: str) -> JsonTable:
    """Say which model it is, on which columns, and of which run; nothing of the rows."""
    study, schema, known, method = trained.study, trained.dataset, trained.groups[group], trained.method
    dtypes = [str(batch.x.dtype).removeprefix("torch.") for batch in (known.train, known.raw.train)]
    return {
        "study": study.name,
        "method": study.method.name,
        "seed": study.seed,
        "round": trained.state.round,
        "model": settings.as_table(study.model),
        "temperature": float(method.temperature) if isinstance(method, Tempered) else 1.0,
        "features": [list(column) for column in schema.features],
        "target": list(schema.target),
        "classes": schema.classes,
        "class_names": schema.provenance.get("class_names"),
        "feature_shape": list(schema.feature_shape),
        "dtypes": dtypes,
    }


@kinds_checked
def load_network(folder: Path | str) -> ShippedNetwork:
    """Open a network that `certify` has shipped; the run is not needed.

    Args:
        folder: one client's, below that which `certify(ship=...)` or `certify --ship` was given.

    Returns:
        The network, on the CPU, which predicts, and its certificate.

    Raises:
        CheckpointError: when a byte was changed, a file is missing, or the format is another.
        StudyError: when the folder is no shipped network's.

    Example:
        >>> import pacbayes_fl as fl
        >>> try:
        ...     fl.load_network("nowhere")
        ... except fl.PacBayesFLError as error:
        ...     print(error)
        nowhere is not a shipped network: network.json is missing
    """
    folder = Path(folder)
    about, files = sealed.read(folder, KIND)
    try:
        leaves = safetensors.torch.load(files[_WEIGHTS])
        shape = tuple(about["feature_shape"]) or (len(about["features"]),)
        model = settings.parse(NetworkModel, about["model"], "[model]").build(shape, about["classes"])
        size = sum(math.prod(each) for each in model.shapes.values())
        units = Scaling(*(leaves[name].unsqueeze(0) for name in Scaling._fields))
        weights, (own, raw) = leaves["weights"].unsqueeze(0), (DTYPES[name] for name in about["dtypes"])
        if weights.shape[1] != size or units.x_mean.shape[1:] != shape or not math.isfinite(about["temperature"]):
            raise ValueError(f"{weights.shape[1]} weights and units {list(units.x_mean.shape[1:])} are not the model's")
        columns = [Column(*each) for each in about["features"]]
        about = {**about, "features": columns, "target": Column(*about["target"])}
        return ShippedNetwork(about["client"], about["certificate"], about, model, weights, units, (own, raw))
    except (*UNREADABLE, SafetensorError, PacBayesFLError) as error:
        raise CheckpointError(f"{folder} cannot be read as a shipped network: {error}", hint=KIND.hint) from error

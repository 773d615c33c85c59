"""Releases of a run: the server's model, and the data that new clients need to join.

Nothing of a client is in a release: no row, name or id, no fingerprint, no score, no state of its own. Of a private
run all numbers in it are made of noisy releases, so that its guarantee covers them. Of any other the model of the
server was made of all clients' rows, and nobody has bounded what it tells of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError

from pacbayes_fl import tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.scaling import FEDERATED, Shared
from pacbayes_fl.errors import UNREADABLE, CheckpointError, DataError, PrivacyError, ShapeError, StudyError
from pacbayes_fl.federation import checkpoint, federation_state, public
from pacbayes_fl.federation.arrays import DTYPES
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.privacy import ledger
from pacbayes_fl.results import run_failures, sealed
from pacbayes_fl.results.folder import NODES, RELEASED, RELEASED_MODEL
from pacbayes_fl.study import residuals
from pacbayes_fl.study.file import Study, read_table
from pacbayes_fl.study.prepare import build, device_of
from pacbayes_fl.study.residuals import GAUSSIAN, ErrorShape
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.run import Trained, open_run
from pacbayes_fl.study.storage import origins
from pacbayes_fl.study.storage.resuming import newest_round
from pacbayes_fl.study.storage.saved_meta import SavedMeta
from pacbayes_fl.tensors import AnyTree

FORMAT_VERSION: Final = 1
SIGN: Final = RELEASED
"""The file by which a folder is known as a release: columns and checksums of all others."""

KIND: Final = sealed.Kind("release", SIGN, FORMAT_VERSION, "release the run anew")

WITHHELD: Final = "withheld"
_LABELS: Final = (
    *("feature_name", "feature_unit", "target_name", "target_unit", "classes", "band", "model", "scaling"),
    "averaged",
)
_WORDS: Final = MappingProxyType(
    {
        "private": "made of noisy releases alone, so that the guarantee of the run covers it",
        "simulated": "made of releases whose noise comes from the seed in the study, so that they hide nothing",
        "clear": "not private: the server's model was made of all clients' rows, and no bound on what it tells",
    }
)


@dataclass(frozen=True)
class Served:
    """The server's side of a run, without the clients.

    Args:
        study: what was run.
        method: the algorithm.
        server: its state.
        round: rounds finished.
        schema: columns of the data, and names of classes that a user's images have; no rows.
        shared: what all clients' scaling has in common.
        dtype: of the rows that the method takes.
        raw: of rows in the data's own units.
        errors: their shape around predicted means.
    """

    study: Study
    method: AnyMethod
    server: AnyTree
    round: int
    schema: tables.Dataset
    shared: Shared
    dtype: torch.dtype
    raw: torch.dtype
    errors: ErrorShape = GAUSSIAN


def served(trained: Trained) -> Served:
    """Leave the clients of a run aside.

    Args:
        trained: as `study.run.open_run` gives it.

    Returns:
        What the server knows.
    """
    known, dataset = trained.groups["existing"], trained.dataset
    schema = replace(dataset, groups={}, provenance=_class_names(dataset.provenance), rows=None)
    state, dtypes = trained.state, (known.train.x.dtype, known.raw.train.x.dtype)
    kept = trained.study, trained.method, state.server, state.round, schema, known.shared
    return Served(*kept, *dtypes, trained.errors)


def _class_names(about: JsonMapping) -> JsonMapping:
    """Keep the names of classes, which are to labels what the names of columns are to features."""
    return {"class_names": about["class_names"]} if "class_names" in about else {}


def _server_side(folder: Path) -> Served:
    """Open the folder of a deployment's server, which never had a row."""
    saved, _ = newest_round(folder)
    study = Study.from_table(SavedMeta.of(saved).study, str(folder))
    try:
        nodes = json.loads((folder / NODES).read_text("utf-8"))
        features = tuple(tables.Column(*pair) for pair in nodes["features"])
        target, shape = tables.Column(*nodes["target"]), tuple(nodes["feature_shape"])
        schema = tables.Dataset({}, features, target, {}, nodes["classes"], shape)
        dtype = DTYPES[nodes["dtypes"][0]]
    except UNREADABLE as error:
        raise DataError(f"{folder / NODES} cannot be read: {error}", hint="restore it from a copy") from error
    method, _ = build(study, schema)
    start = method.init_server(torch.Generator().manual_seed(study.seed))
    with checkpoint.meant(saved):
        server, average = federation_state.restored(start, saved.tensors)
        server = server if average is None else average.server
    watch, raw = SavedMeta.of(saved).watch, torch.float32 if shape else torch.float64
    method = federation_state.at_rates(method, FederationState(server, None, saved.round, watch))
    return Served(study, method, server, saved.round, schema, scaling.read(folder, schema), dtype, raw)


def release(folder: Path, out: Path, public_scaling: bool = False) -> str:
    """Write the releasable part of a run into another folder.

    Args:
        folder: of a run.
        out: folder of the release, which is empty or does not exist.
        public_scaling: moments over all clients' rows, by which columns are scaled, may be published.

    Returns:
        What the release is, in words.

    Raises:
        StudyError: when the folder is not a run's, the other one holds something, or the method's server holds rows.
        PrivacyError: when columns are scaled by moments of all clients' rows and nobody has said that these are public.
        CheckpointError: when there is no intact round, or a file cannot be written.
    """
    sealed.check_new(out, folder, KIND)
    known = _server_side(folder) if (folder / NODES).is_file() else served(open_run(folder))
    name = known.study.method.name
    if not known.method.federated:
        what = f"the server of {name} is given the clients' rows and holds what it makes of them"
        raise StudyError(what, hint="release a run of a method whose rows stay with the clients")
    if known.method.server_holds is not None:
        what = f"the server of {name} holds {known.method.server_holds}, which a release would give to everybody"
        raise StudyError(what, hint="release a run of a method whose server holds what clients share")
    model = public.to_bytes(known.method, known.server, known.study.seed)
    files = {"study.toml": _study(known).to_toml().encode(), RELEASED_MODEL: model}
    if not known.schema.feature_shape:
        files[scaling.FILE] = scaling.to_json(_public(known, public_scaling), known.schema)
    if known.errors.learned:
        files[residuals.FILE] = residuals.to_json(known.errors, known.round)
    private = known.study.privacy.epsilon is not None
    if private:
        files[ledger.NAME] = ledger.to_release(folder / ledger.NAME)
    simulated = known.study.privacy.randomness == "simulation"
    text = _WORDS["clear" if not private else "simulated" if simulated else "private"]
    if public_scaling and scaling.FILE in files:
        text += "; with moments of all clients' rows, which were said to be public"
    files["labels.json"] = sealed.to_bytes(_labels(known.study, folder) | {"release": text})
    own = origins.used(_study(known))
    sealed.write(out, KIND, _about(known) | ({origins.KEY: own} if own else {}), files)
    return text


def _study(known: Served) -> Study:
    """Leave out of a study where its data and its shared ledger are, who is left out, and how rows were dealt out."""
    task: Any = "auto" if known.schema.classes is None else "classification"
    return replace(
        known.study,
        data=replace(known.study.data, source=WITHHELD, options={}, exclude_clients=(), follow_seed=False, task=task),
        privacy=replace(known.study.privacy, ledger=None, total=None),
    )


def _public(known: Served, public: bool) -> Shared:
    """Give what may be known of the clients' scaling."""
    if public or known.study.privacy.epsilon is not None:  # what a private run knows of all clients is a noisy release
        return known.shared._replace(average=known.shared.average if public else None)
    columns = scaling.names(known.schema)
    if federated := [name for name, kind in zip(columns, known.shared.kinds, strict=True) if kind in FEDERATED]:
        what = f"{', '.join(federated)}: scaled by moments of all clients' rows, which nobody has said are public"
        raise PrivacyError(what, hint="--public-scaling says so; or run with data.scale = 'client'")
    if known.shared.summaries is not None:
        what = "client_inputs = 'summaries' are scaled by those of all clients, which nobody has said are public"
        raise PrivacyError(what, hint="--public-scaling says so; or run with data.client_inputs = 'none'")
    return known.shared._replace(average=None, linear=None)


def _labels(study: Study, folder: Path) -> JsonTable:
    """Say what predictions are, and of a private run what was spent; nothing that was measured."""
    try:
        result = json.loads((folder / "labels.json").read_text("utf-8"))
        kept = {name: result[name] for name in _LABELS if name in result}
    except UNREADABLE as error:
        what, usual = f"{folder / 'labels.json'} cannot be read: {error}", "finish the run with --resume"
        what, hint = run_failures.unfinished(folder, what, usual)
        raise DataError(what, hint=hint) from error
    if study.privacy.epsilon is None or "privacy" not in result:
        return kept
    spent = dict(result["privacy"])
    if "ledger" in spent:  # its client is the one for whom all runs together have spent most
        spent["ledger"] = {name: value for name, value in spent["ledger"].items() if name != "client"}
    return kept | {"privacy": spent}


def _about(known: Served) -> JsonTable:
    schema = known.schema
    return {
        "round": known.round,
        "features": [list(column) for column in schema.features],
        "target": list(schema.target),
        "classes": schema.classes,
        **schema.provenance,
        "feature_shape": list(schema.feature_shape),
        "dtypes": [str(known.dtype).removeprefix("torch."), str(known.raw).removeprefix("torch.")],
    }


def is_release(folder: Path | str) -> bool:
    """Whether a folder is a release and not a run's.

    Args:
        folder: any.

    Returns:
        True where `open_release` would read it.
    """
    return (Path(folder) / SIGN).is_file()


def open_release(folder: Path | str) -> Served:
    """Open a release to join with it, or to serve its model.

    Args:
        folder: as `release` wrote it.

    Returns:
        What the server knows; its device is the one of today.

    Raises:
        CheckpointError: when a file is damaged, missing, or of a later version.
        StudyError: when the folder is no release, or a file of the user's has changed since.
    """
    folder = Path(folder)
    about, files = sealed.read(folder, KIND)
    own = about.get(origins.KEY, {})
    origins.check(own, folder)
    table, where = read_table(folder / "study.toml")
    study = Study.from_table(origins.relocated(table, own, folder), where)
    if study.federation.device == "cuda" and not torch.cuda.is_available():  # released elsewhere
        study = replace(study, federation=replace(study.federation, device="cpu"))
    try:
        features = tuple(tables.Column(*pair) for pair in about["features"])
        target, shape = tables.Column(*about["target"]), tuple(about["feature_shape"])
        dtype, raw = (getattr(torch, name) for name in about["dtypes"])
        schema = tables.Dataset({}, features, target, _class_names(about), about["classes"], shape)
        method, _ = build(study, schema)
        flat = safetensors.torch.load(files[RELEASED_MODEL])
        start = method.init_server(torch.Generator().manual_seed(study.seed))
        server = tensors.unleaves(start, flat, exact=False)
    except (*UNREADABLE, SafetensorError, ShapeError) as error:
        raise CheckpointError(f"{folder} cannot be read as a release: {error}", hint="release the run anew") from error
    server = tensors.tree_map(lambda leaf: leaf.to(device_of(study)), server)
    errors, _ = residuals.read(study, folder)
    return Served(study, method, server, int(about["round"]), schema, scaling.read(folder, schema), dtype, raw, errors)

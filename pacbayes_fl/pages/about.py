"""What was run, in a paragraph made from the study; what to know before numbers are used; and how to repeat it."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pacbayes_fl.errors import UNREADABLE, counted, listed
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.names import shortened
from pacbayes_fl.pages.markup import Content, Element, definitions, folded, section, table, tag
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.manifest import read
from pacbayes_fl.results.moments import array
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.run_warnings import read as read_warnings
from pacbayes_fl.results.updates import since

_NAMED: Final = 6
_FILES: Final = ("study.toml", "data.npz", "rows.json", "clients.csv", "predictions.safetensors")
_TITLES: Final = 80


class Known(NamedTuple):
    """What a run folder says beside its result.

    Args:
        study: every value of the study; empty where it cannot be read.
        environment: versions, device and the fingerprint of the data; likewise.
        warned: what the run warned of.
        hashes: SHA-256 by file.
        later: what clients have learned since, or nothing.
    """

    study: JsonMapping
    environment: JsonMapping
    warned: Sequence[str]
    hashes: Mapping[str, str]
    later: str


def known_of(folder: Path) -> Known:
    """Read what a run folder says beside its result.

    Args:
        folder: of a finished run.

    Returns:
        What could be read.
    """
    study, environment = _toml(folder / "study.toml"), _json(folder / "environment.json")
    manifest = read(folder)
    hashes = {} if manifest is None else {n: one.sha256 for n, one in manifest.files.items() if n in _FILES}
    later = since(folder)
    return Known(study, environment, read_warnings(folder), hashes, "" if later is None else str(later))


def _json(path: Path) -> JsonTable:
    try:
        read_ = json.loads(path.read_text("utf-8"))
    except UNREADABLE:
        return {}
    return read_ if isinstance(read_, dict) else {}


def _toml(path: Path) -> JsonTable:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except UNREADABLE:
        return {}


def _given(value: object) -> object:
    """Read a value of a study, where "none" is nothing."""
    return None if value == "none" else value


def paragraph(result: Result, study: JsonMapping) -> str:
    """Say what was run.

    Args:
        result: a finished run.
        study: every value of its study.

    Returns:
        A few sentences.
    """
    said = [_trained(result, study), _target(result, study), _scored(result), _rounds(result, study)]
    if isinstance(private := result.labels.get("privacy"), dict):
        said.append(f"The run is private: {private.get('statement', '')}.")
    return " ".join(one for one in said if one)


def _trained(result: Result, study: JsonMapping) -> str:
    counts = []
    for group in GROUPS:
        sizes = result.rows.sizes(group)
        if sizes:
            rows = f"{sizes[0]}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
            role = "that took part in the training" if group == "existing" else "that never took part"
            counts.append(
                f"{len(sizes)} {group} client{'s' if len(sizes) > 1 else ''} {role} ({rows} training rows each)"
            )
    source = study.get("data", {}).get("source", "")
    where = f" from {shortened(str(source), _TITLES)}" if source else ""
    whom = " and ".join(counts) or "clients whose rows are at the nodes of a deployment"
    return f"{result.method} was trained on the study {shortened(result.study, _TITLES)}: {whom}{where}."


def _target(result: Result, study: JsonMapping) -> str:
    if result.task == "classification":
        count = result.labels.get("classes")
        return f"It classifies rows into {count} classes." if count else "It classifies rows."
    names = _features([str(name) for name in result.labels.get("feature_name", ())])
    unit = str(result.labels.get("target_unit", ""))
    target = str(result.labels.get("target_name", "the target")) + (f" in {unit}" if unit not in ("", "1") else "")
    from_ = f" from {len(names)} feature{'s' if len(names) > 1 else ''} ({listed(names, _NAMED)})" if names else ""
    transform = _given(study.get("data", {}).get("transform"))
    return f"It predicts {target}{from_}{f', learned as {transform}' if transform else ''}."


def _features(names: Sequence[str]) -> list[str]:
    """Name the features of a table once by column, also where "column=word" is a feature for each of its words."""
    words = Counter(name.partition("=")[0] for name in names if "=" in name)

    def named(name: str) -> str:
        column, equals, _ = name.partition("=")
        return f"{column} of {words[column]} words" if equals and words[column] > 1 else name

    return [*dict.fromkeys(map(named, names))]


def _scored(result: Result) -> str:
    if not result.clients:
        return "Scores and forecasts stay with the rows: each node keeps those of its clients, with a page of its own."
    rows = 0
    for group in GROUPS:
        mask = array(result, f"{group}.mask_test")
        rows += 0 if mask is None else int(np.asarray(mask).sum())
    which = result.labels.get("test_rows")
    count = f"{rows} test rows" if rows else "test rows"
    model = result.labels.get("model")
    scored = f" The model that is scored: {str(model).rstrip('.')}." if model else ""
    return f"Scores are of {count}{f' ({which})' if which else ''}.{scored}"


def _rounds(result: Result, study: JsonMapping) -> str:
    if not result.rounds:
        return f"There were no rounds; seed {result.seed}."
    federation = study.get("federation", {})
    cohort = _given(federation.get("cohort"))
    who = counted(cohort, "client") if isinstance(cohort, int) else "all existing clients"
    count = counted(len(result.rounds), "round")
    return f"There {'was' if len(result.rounds) == 1 else 'were'} {count}; {who} took part in each. Seed {result.seed}."


def warnings(result: Result, known: Known) -> Element | None:
    """Make the section of warnings: what the run warned of, and what its numbers say by themselves.

    Args:
        result: a finished run.
        known: of its folder.

    Returns:
        The section; None where there is nothing to say.
    """
    said = [str(one) for one in known.warned]
    for text in result.labels.get("fell_back", ()):
        said.append(f"A newer round was damaged: {text}")
    for group in GROUPS:
        odd: dict[str, list[str]] = {}
        for metric in result.metrics:
            for client, value in result.not_finite(group, metric).items():
                odd.setdefault(f"{shortened(client, _TITLES)} ({value})", []).append(metric)
        if odd:
            who = listed([f"{client} in {listed(names)}" for client, names in odd.items()])
            said.append(f"Scores of {group} clients that are not finite are left out of means: {who}.")
    drops = sum(len(record.dropped) for record in result.rounds)
    if drops:
        said.append(f"Clients were left out of rounds {drops} times: see Rounds.")
    if undone := sum(len(record.undone) for record in result.rounds):
        said.append(f"Rounds were undone and played again with smaller rates {undone} times: see Rounds.")
    if known.later:
        said.append(f"Updated since: predictions use {known.later}; this page is of the models without them.")
    if result.clients and not result.predictions:
        said.append("The run keeps no rows, nor predictions of them, so that there are no figures of these.")
    said += [str(one) for one in (result.labels.get("privacy") or {}).get("remarks", ())]
    if not said:
        return None
    return section(
        "warnings", "Warnings", tag("ul", *(tag("li", one) for one in dict.fromkeys(said)), class_="warning")
    )


def repeat(result: Result, known: Known, commands: Sequence[str]) -> Element:
    """Make the section that says how to repeat what was done.

    Args:
        result: a finished run.
        known: of its folder.
        commands: that do it again, in the folder.

    Returns:
        The section.
    """
    environment, data = known.environment, known.environment.get("data", {})
    facts: list[tuple[str, Content]] = [("seed", str(result.seed)), ("round that was scored", str(result.round))]
    for name in ("device", "device_name", "threads", "platform"):
        if name in environment:
            facts.append((name.replace("_", " "), str(environment[name])))
    versions = [(name, str(version or "not installed")) for name, version in environment.get("versions", {}).items()]
    hashes = [*known.hashes.items()]
    if isinstance(data, dict):
        for key, words in _PRINTS:
            one = data.get(key, {})
            each = {f"{words}, {name}": str(value) for name, value in one.items()} if isinstance(one, dict) else {}
            hashes += [*each.items()] if isinstance(one, dict) else [(words, str(one))]
    differs = [
        (key, *(str(one) for one in pair))
        for key, pair in result.labels.get("differs_from_paper", {}).items()
        if isinstance(pair, list) and len(pair) == 2
    ]
    lines = [tag("code", one) for one in commands]
    return section(
        "repeat",
        "How to repeat it",
        tag("p", "In the run folder:"),
        tag("pre", *lines),
        definitions(facts),
        table("Versions", ("package", "version"), versions) if versions else None,
        table("Fingerprints (SHA-256)", ("of", "digest"), [(n, tag("code", d)) for n, d in hashes]) if hashes else None,
        table("Where the preset differs from the paper", ("option", "here", "paper"), differs) if differs else None,
        folded("Every value of the study", _values(known.study)) if known.study else None,
    )


_PRINTS: Final = (
    ("sha256", "data"),
    ("file_sha256", "file of the rows"),
    ("split_sha256", "which rows are training and test rows"),
)


def _values(study: JsonMapping, prefix: str = "") -> Element:
    pairs: list[tuple[str, str]] = []

    def walk(values: JsonMapping, path: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{path}{key}.")
            else:
                pairs.append((f"{path}{key}", json.dumps(value, ensure_ascii=False, default=str)))

    walk(study, prefix)
    return table("Study", ("key", "value"), pairs)

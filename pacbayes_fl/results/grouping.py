"""Which runs differ in their seed alone, and how the others are told apart in few words."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import caller_stacklevel, listed
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.run_settings import LABEL

_WORDS: Final = 3  # settings that a name says


def settings_of(result: Result) -> JsonMapping:
    """Give what was asked of a run.

    Args:
        result: of the run.

    Returns:
        Its label; of a result without one what other labels say of the share of weights kept, particles, and the
        epsilon and mechanism of privacy, None where they do not.
    """
    if known := result.labels.get(LABEL):
        return {**known}
    private = result.labels.get("privacy") or {}
    spent = [float(f"{value:.3g}") for key, value in private.items() if key.startswith("epsilon") and value is not None]
    return {
        "kept": result.labels.get("kept"),
        "particles": result.labels.get("particles"),
        "privacy.epsilon": spent[0] if spent else None,
        "privacy.mechanism": private.get("mechanism"),
    }


def by_settings(
    results: Sequence[Result], separator: str = ", ", without: Collection[str] = ()
) -> dict[str, list[Result]]:
    """Gather the seeds of each run: results of one method and study that differ in nothing else that was asked.

    Args:
        results: finished or living runs.
        separator: between the parts of a name.
        without: dotted keys of settings in which runs may differ all the same, such as what an axis shows.

    Returns:
        Results by name: the method, its study where there are several, and the settings that runs of that name do not
        share, such as "pac-pfl, rounds=10"; of many the first few, and how many more differ.
    """
    several = len({result.study for result in results}) > 1
    families: dict[tuple[str, ...], list[tuple[JsonTable, list[Result]]]] = {}
    for result in results:
        varied = result.labels.get("varied", {})
        shown = varied.get("key") in without
        method = str(varied["method"]) if shown else result.method
        value = "" if shown or not varied else json.dumps(varied.get("value"), default=str)
        family = families.setdefault((method, *([result.study] if several else []), value), [])
        own = {key: value for key, value in settings_of(result).items() if key not in without}
        known = LABEL in result.labels
        for settings, same in family:
            # a key that one of them has not is an option of a later version of the library, or of another part
            if (LABEL in same[0].labels) == known and all(own.get(k, v) == v for k, v in settings.items()):
                settings.update(own)
                same.append(result)
                break
        else:
            family.append((own, [result]))
    runs: dict[str, list[Result]] = {}
    for (*name, _), family in families.items():
        for words, (_, same) in zip(_words([settings for settings, _ in family]), family, strict=True):
            runs.setdefault(_unused(separator.join((*name, *words)), runs), []).extend(same)
    order = {id(result): place for place, result in enumerate(results)}
    return dict(sorted(runs.items(), key=lambda run: order[id(run[1][0])]))


def differing(results: Sequence[Result]) -> list[str]:
    """List the settings of which several results have different values.

    Args:
        results: of any runs, as a rule of one method on one study.

    Returns:
        Dotted keys.
    """
    return _differing([_texts(settings_of(result)) for result in results])


def _differing(texts: Sequence[Mapping[str, str]]) -> list[str]:
    known = {
        key: {one[key] for one in texts if key in one} for key in dict.fromkeys(key for one in texts for key in one)
    }
    return [key for key, values in known.items() if len(values) > 1]


def _texts(settings: JsonMapping) -> dict[str, str]:
    return {key: json.dumps(value, default=str) for key, value in settings.items()}


def _words(family: Sequence[JsonMapping]) -> list[list[str]]:
    """Say for each of several settings in what it differs from the others."""
    texts = [*map(_texts, family)]
    keys = _differing(texts)
    shown = keys if len(keys) <= _WORDS else _telling(texts, keys)
    more = [f"{len(keys) - len(shown)} more differ"] if len(keys) > len(shown) else []
    short = [key.rpartition(".")[2] for key in shown]
    names = {
        key: name if name != "seed" and short.count(name) == 1 else key.partition(".")[2]
        for key, name in zip(shown, short, strict=True)
    }
    return [
        [f"{name}={_text(one[key])}" for key, name in names.items() if one.get(key) is not None] + more
        for one in family
    ]


def _telling(texts: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Choose few of many keys that tell all settings apart, the first of equals: data and presets bring many others."""
    keys = sorted(keys, key=lambda key: key not in ("data.source", "method.preset"))
    chosen, apart = list[str](), 1
    while apart < len(texts):
        parts = {key: len({tuple(one.get(k) for k in (*chosen, key)) for one in texts}) for key in keys}
        best = max(keys, key=parts.__getitem__)
        if parts[best] == apart:
            break
        chosen, apart = [*chosen, best], parts[best]
    return chosen


def _text(value: object) -> str:
    if isinstance(value, str):
        return Path(value).name or value  # of a source the file
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=str)


def _unused(name: str, known: Collection[str]) -> str:
    """Number a name that others have: files of one name, or a result whose settings nobody knows."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in range(1, len(known) + 2))
    return next(one for one in numbered if one not in known)


def distinct(results: Sequence[Result]) -> list[Result]:
    """Leave out results that are there already: a run that is given twice, or made again, is no further seed.

    Args:
        results: of any runs.

    Returns:
        Each with other scores, seed or settings than those before it.

    Warns:
        UserWarning: naming those that are left out.
    """
    seen: dict[str, list[Result]] = {}
    kept: list[Result] = []
    twice: list[str] = []
    for result in results:
        varied = result.labels.get("varied", {})
        settings = result.labels.get(LABEL, result.labels)
        about = [result.study, varied.get("method", result.method), result.seed, settings]
        same = seen.setdefault(json.dumps(about, sort_keys=True, default=str), [])
        if any(one is result or one.rows == result.rows for one in same):
            twice.append(f"{result.method} on {result.study}, seed {result.seed}")
        else:
            same.append(result)
            kept.append(result)
    if twice:
        names = listed(list(dict.fromkeys(twice)), 3)
        warnings.warn(f"there twice, and counted once: {names}", stacklevel=caller_stacklevel())
    return kept

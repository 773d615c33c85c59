"""Our numbers beside the paper's: `python -m benchmarks.tables FOLDER ...`, folders of `pacbayes-fl compare --out`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
METRICS = ("rsmse", "ce")
CLASSIFICATION = (
    "journal_table1.json",
    "journal_table2.json",
    "journal_table3.json",
    "journal_table5.json",
    "icml_table1.json",
    "fedsi_table1.json",
    "bpfed_table2.json",
    "fedsi_table2.json",
    "pac_pfl_table3.json",
)
"""Files of `reference/` on classifiers; the first that has a number is taken."""
USUAL_INCLUSION = "0.99"
"""Initial lambda of sFedBayes whose rows stand beside a study that does not end in another one."""

BINS = 10
"""Bins of the calibration errors of a paper whose reference file does not say another number."""

DIGITS: Mapping[str, int] = MappingProxyType({"ece": 1, "mce": 1, "brier": 3})
"""Decimals of the papers' numbers of calibration."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {"maml": "per-fedavg", "fedsoul": "fedpop", "vanilla": "vanilla-bnn", "pooled": "pooled-bnn"}
)
"""Our names of methods that a paper's table has under another one."""

Cells = Mapping[tuple[str, str, str], Mapping[str, Any]]


def row_name(reference: Mapping[str, Any], method: str) -> str:
    """Give the name that a paper's table has for a method.

    Args:
        reference: a file of `reference/`.
        method: our name.

    Returns:
        A key of the file's rows: the name itself, or one that is an alias of it; "" where the paper has neither.
    """
    return next((name for name in reference["rows"] if ALIASES.get(name, name) == method), "")


def published(reference: Mapping[str, Any], study: str, method: str, group: str) -> tuple[float, float | None] | None:
    """Look a row of a paper's table up.

    Args:
        reference: a file of `reference/`.
        study: name of our study; a suffix such as "-bern", which says where the weather is from, is not the paper's.
        method: its name.
        group: "existing" or "new".

    Returns:
        RSMSE and CE, None for the CE of a method that has none; or None where the paper has no such cell.
    """
    cells = reference["rows"].get(row_name(reference, method), {}).get(group, {})
    result = next((cells[name] for name in sorted(cells, key=len, reverse=True) if study.startswith(name)), None)
    return None if result is None else (result[0], result[1])


def published_classifier(references: Sequence[Mapping[str, Any]], study: str, method: str) -> dict[str, Any]:
    """Look up what papers say of a classifier on one split of a data set.

    Args:
        references: files of `reference/`; an earlier one counts first.
        study: name of our study: DATA-SIZE, such as "mnist-small" or "cifar10-clusters-large"; where it ends in a
            number, such as "mnist-medium-sparse-0.50", that is sFedBayes's initial lambda. With "fedsi-" in front,
            for a network that the other papers do not have, only that paper's files count.
        method: its name.

    Returns:
        "pm" and "gm", mean and spread in per cent; "ece" and "mce" in per cent, "bins" of the former where they are not
        `BINS`, "brier"; "accuracy" of a model that the paper does not name, where no paper has "pm" or "gm". None is a
        number that our copy of the paper has lost. "remarks", where a number is of something else than its row's name.
    """
    name = re.fullmatch(r"(fedsi-)?(.+)-(small|medium(?:-sparse)?|large|20|all)(?:-(0\.\d\d))?", study)
    result: dict[str, Any] = {}
    remarks: dict[str, str] = {}
    if name is None:
        return result
    own, data, size, inclusion = name.groups()
    for reference in references:
        if own and not reference["source"].startswith("FedSI "):
            continue
        row = row_name(reference, method)
        cell = reference["rows"].get(row, {}).get(data, {}).get(size, {})
        cell = cell.get(inclusion or USUAL_INCLUSION, {}) if "by" in reference else cell
        for what in ("pm", "gm", "accuracy", *DIGITS):
            if what in cell and result.get(what) is None:
                result[what] = cell[what]
                remarks[what] = reference.get("remarks", {}).get(row, {}).get(what, "")
                result |= {"bins": reference["bins"]} if what == "ece" and "bins" in reference else {}
    if {"pm", "gm"} & result.keys():
        result.pop("accuracy", None)
    said = [remarks[what] for what in result if remarks.get(what)]
    return result | ({"remarks": said} if said else {})


def markdown(summary: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Write the table of one study of regression.

    Args:
        summary: `compare.json`.
        reference: a file of `reference/`.

    Returns:
        Markdown: a row per method and group, our mean with its 95 % interval, and the paper's.
    """
    cells = _cells(summary)
    lines = [
        _heading(summary),
        "",
        "| method | clients | RSMSE [95 %] | paper | CE [95 %] | paper | NLPD | CRPS |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, group in dict.fromkeys((method, group) for method, group, _ in cells):
        theirs = published(reference, summary["study"], method, group)
        row = [method, group]
        for position, metric in enumerate(METRICS):
            row.append(_ours(cells, (method, group, metric)))
            value = None if theirs is None else theirs[position]
            row.append("-" if value is None else f"{value:.2f}")
        row += [_ours(cells, (method, group, metric), interval=False) for metric in ("nlpd", "crps")]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, *_not_finite(summary, (*METRICS, "nlpd", "crps"))]) + "\n"


def classifier_markdown(summary: Mapping[str, Any], references: Sequence[Mapping[str, Any]]) -> str:
    """Write the table of one study of classification: accuracies, ECE and MCE in per cent.

    Args:
        summary: `compare.json`.
        references: files of `reference/`; an earlier one counts first.

    Returns:
        Markdown: a row per method and group, our mean with its 95 % interval, and the papers' for existing clients.
    """
    cells, theirs_by, found = _cells(summary), set[int](), dict[str, Mapping[str, Any]]()
    bins = " or ".join(map(str, sorted(set(summary.get("calibration_bins", {"": BINS}).values()))))
    lines = [
        _heading(summary),
        "",
        "| method | clients | PM accuracy % [95 %] | paper PM | GM accuracy % [95 %] | paper GM "
        f"| PM ECE % ({bins} bins) [95 %] | paper ECE | PM MCE % | paper MCE | PM Brier | paper Brier | PM NLL |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for method, group in dict.fromkeys((method, group) for method, group, _ in cells):
        theirs = published_classifier(references, summary["study"], method) if group == "existing" else {}
        found |= {method: theirs} if theirs else {}
        theirs_by |= {theirs.get("bins", BINS)} if "ece" in theirs else set()
        row = [method, group]
        for metric, what in (("pm.accuracy", "pm"), ("gm.accuracy", "gm"), ("pm.ece", "ece")):
            row += [_ours(cells, (method, group, metric), 100.0, 2), theirs_cell(theirs, what)]
        row += [_ours(cells, (method, group, "pm.mce"), 100.0, 2, interval=False), theirs_cell(theirs, "mce")]
        row += [_ours(cells, (method, group, "pm.brier"), interval=False), theirs_cell(theirs, "brier")]
        row.append(_ours(cells, (method, group, "pm.nll"), interval=False))
        lines.append(f"| {' | '.join(row)} |")
    lines += [
        "",
        "Ours is of the last round; the papers take the round with the highest accuracy of the last 100 or of all.",
    ]
    lines += [f"The papers' calibration errors have {' or '.join(map(str, sorted(theirs_by)))} bins."] * bool(theirs_by)
    lines += footnotes(found)
    shown = ("pm.accuracy", "gm.accuracy", "pm.ece", "pm.mce", "pm.brier", "pm.nll")
    lines += _not_finite(summary, shown)
    return "\n".join(lines) + "\n"


def _cells(summary: Mapping[str, Any]) -> Cells:
    return {(cell["method"], cell["group"], cell["metric"]): cell for cell in summary["cells"]}


def _not_finite(summary: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    """Say of which shown means clients are left out, or are not finite, and who: lines below a table."""
    result = []
    for cell in summary["cells"]:
        if cell["metric"] in metrics and cell.get("not_finite"):
            who = ", ".join(f"{name}: {value}" for name, value in cell["not_finite"])
            of = f"{cell['method']}, {cell['group']} clients, {cell['metric']}"
            result.append(f"{of}: mean over {cell['scores']} of {cell['asked']} scores ({who}).")
    return ["", *result] if result else []


def _heading(summary: Mapping[str, Any]) -> str:
    return f"### {summary['study']}, {max(cell['seeds'] for cell in summary['cells'])} seeds"


def _ours(cells: Cells, key: tuple[str, str, str], factor: float = 1.0, digits: int = 3, interval: bool = True) -> str:
    """Write a cell; "-" where there is none, or one that was not finite."""
    cell = cells.get(key)
    if cell is None or cell["mean"] is None:
        return "-"
    names = ("mean", "low", "high") if interval else ("mean",)
    mean, *ends = (f"{factor * cell[name]:.{digits}f}" for name in names)
    return f"{mean} [{', '.join(ends)}]" if interval else mean


def theirs_cell(result: Mapping[str, Any], what: str) -> str:
    """Write a paper's number.

    Args:
        result: of `published_classifier`.
        what: one of its keys.

    Returns:
        The cell; "-" where the paper has none, "?" where our copy has lost it.
    """
    mark = ""
    if what == "pm" and "accuracy" in result:
        what, mark = "accuracy", "*"
    if what not in result:
        return "-"
    value = result[what]
    if isinstance(value, list):
        return f"{value[0]:.2f} ± {value[1]:.2f}{mark}"
    return "?" if value is None else f"{value:.{DIGITS.get(what, 2)}f}"


def footnotes(theirs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Explain papers' numbers below a table of ours.

    Args:
        theirs: results of `published_classifier` by method.

    Returns:
        Lines: what the star means, if any number has one, and numbers of something else than their rows' names.
    """
    starred = any("accuracy" in one for one in theirs.values())
    remarks = [f"The paper's {method}: {said}" for method, one in theirs.items() for said in one.get("remarks", [])]
    return ["`*`: FedSI's Table I, which does not say of which model."] * starred + remarks


def classifiers() -> list[Mapping[str, Any]]:
    """Read the files of `reference/` on classifiers, in the order in which they count."""
    return [_read(REFERENCE / name) for name in CLASSIFICATION]


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables of some comparisons.

    Args:
        arguments: of the command line; `sys.argv` when None.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument(
        "--reference", type=Path, default=REFERENCE / "pac_pfl_table6.json", help="of regression (default: PAC-PFL's)"
    )
    options = parser.parse_args(arguments)
    regression, classification = _read(options.reference), classifiers()
    for folder in options.folder:
        summary = _read(folder / "compare.json")
        classifies = any(cell["metric"].startswith("pm.") for cell in summary["cells"])
        print(classifier_markdown(summary, classification) if classifies else markdown(summary, regression))


if __name__ == "__main__":
    main()

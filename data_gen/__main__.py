"""The command line: ``python -m data_gen NAME [options] --out DIR``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from data_gen import DataGenError, generate


def _amount(text: str) -> int | None:
    """Read a number of samples; "all" is None."""
    return None if text == "all" else int(text)


def parser() -> argparse.ArgumentParser:
    """Build the parser; options left out keep the defaults of the configuration classes."""
    top = argparse.ArgumentParser(
        prog="python -m data_gen", description="Make federated regression data (PAC-PFL 8.5)."
    )
    names = top.add_subparsers(dest="name", required=True, metavar="NAME")

    def command(name: str, words: str) -> argparse.ArgumentParser:
        sub = names.add_parser(name, help=words, description=words, argument_default=argparse.SUPPRESS)
        sub.add_argument("--out", required=True, help="folder to write to")
        sub.add_argument("--clients", type=int, help="existing clients (24)")
        sub.add_argument("--new-clients", type=int, help="new clients (24)")
        return sub

    poly = command("polynomial", "Noisy draws of Gaussian processes with polynomial means.")
    poly.add_argument("--samples", type=int, help="training rows of each client (10)")
    poly.add_argument("--test-samples", type=int, help="test rows of each client (100)")
    poly.add_argument("--modes", type=int, help="Gaussian-process priors (2)")
    poly.add_argument("--seed", type=int, help="fixes every draw (0)")
    for name, words in (("pv-ew", "facing east or west"), ("pv-s", "facing south")):
        house = command(name, f"Hourly DC power of houses {words}.")
        house.add_argument("--samples", type=_amount, help='training rows of each house, or "all" (150)')
        house.add_argument("--seed", type=int, help="of the existing houses (3)")
        house.add_argument("--new-seed", type=int, help="of the new houses (7)")
        house.add_argument("--mode", choices=("faithful", "physical"), help="published generator, or right physics")
        house.add_argument("--weather", help="typical, pvgis, clearsky, or the path of a PVGIS hourly CSV file")
        house.add_argument("--pick", choices=("random", "first"), help="which training rows (random)")
        house.add_argument("--train-year", type=int, help="where the weather has several years (2018)")
        house.add_argument("--test-year", type=int, help="where the weather has several years (2019)")
        house.add_argument("--latitude", type=float, help="for pvgis and clearsky, degrees north (46.951)")
        house.add_argument("--longitude", type=float, help="for pvgis and clearsky, degrees east (7.45)")
        house.add_argument("--utc-offset", type=float, help="hours of local time minus UTC")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and write one data set; print its file, sizes and content hash.

    Args:
        arguments: of the command line; those of the process if None.

    Returns:
        0, or 2 where the data cannot be made or written (the reason goes to standard error).
    """
    options: dict[str, Any] = vars(parser().parse_args(arguments))
    name, out = options.pop("name"), options.pop("out")
    try:
        dataset = generate(name, **options)
        path = dataset.save(out)
    except DataGenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = dataset.manifest["sizes"]
    print(path)
    print(
        f"{sizes['clients']} clients, {sizes['new_clients']} new; {sizes['train_rows']} training and "
        f"{sizes['test_rows']} test rows of {sizes['features']} features; sha256 {dataset.sha256}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

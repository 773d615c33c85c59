"""Gaussian noise that is correlated over rounds, so that much of it cancels in sums of releases: DP-FTRL.

Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling"; Denisov et al. 2022; banded:
Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; square roots: Fichtenberger, Henzinger and
Upadhyay 2023.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from pacbayes_fl.errors import UNREADABLE, PrivacyError
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

NAME: Final = "noise.safetensors"
"""File of the noise of earlier releases: as secret as the rows, and needed for those to come."""


def band(size: int) -> Tensor:
    r"""Coefficients of the factor C of prefix sums: the first ones of their square root.

    c_k = binom(2 k, k) / 4^k, k < size: the expansion of (1 - x)^(-1/2), whose square 1 / (1 - x) sums up

    Args:
        size: b, the width of the band.

    Returns:
        [b], float64; c_0 = 1.

    Example:
        >>> from pacbayes_fl.privacy.correlated import band
        >>> band(4).tolist()
        [1.0, 0.5, 0.375, 0.3125]
    """
    order = torch.arange(1, size, dtype=torch.float64)
    return torch.cat((torch.ones(1, dtype=torch.float64), torch.cumprod((2 * order - 1) / (2 * order), 0)))


def sensitivity(cohorts: Cohorts) -> float:
    r"""Give the norm by which one participation of a client moves C G, in clips.

    The rounds release G + C^-1 Z, with G [T, D] the clipped sums, Z of independent N(0, s^2), and C [T, T] lower
    triangular with C_ij = c_(i-j) for 0 <= i - j < b. Its diagonal is 1, so that it is invertible; sums over rounds are
    A G + B Z with A_ij = 1 for j <= i and B = A C^-1. To release G + C^-1 Z is to release Y = C G + Z, as either is C
    or C^-1 times the other, row by row, without looking ahead.

    Given the rows of Y before i, all clients' messages are fixed functions of their rows, adaptive as they may be. A
    client whose rows change moves row i of C G by sum_j c_(i-j) d_j over the rounds j <= i in which it takes part, with
    |d_j| at most the clip (twice that where it is replaced). Where its rounds are at least b apart, at most one term is
    not 0, and the norm is c_(i-j) |d_j|. So each row is a Gaussian mechanism of known sensitivity given those before,
    and Gaussian mechanisms compose by adding squares of sensitivity / s, adaptively chosen or not (Dong, Roth and Su
    2022, "Gaussian Differential Privacy"):

        sum_i (c_(i-j) / s)^2 <= p |c|^2 clip^2 / s^2      for p participations

    which rounds near the end only lower, and one where d is constant attains. That is the cost of p releases with
    everybody at the multiplier s / (|c| clip): the account of cohorts in order (`charges.checked`) with
    b = `cohorts.separation`. Denisov et al. 2022 show for any lower triangular C that adaptive streams cost no more.

    Args:
        cohorts: in order.

    Returns:
        |c|_2 of `band(cohorts.separation)`.

    Example:
        >>> from pacbayes_fl.privacy.correlated import sensitivity
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> round(sensitivity(Cohorts(100, 50, "in-order")) ** 2, 4)  # 1 + 1/4
        1.25
    """
    return float(torch.linalg.vector_norm(band(cohorts.separation)))


def check(cohorts: Cohorts) -> None:
    """Refuse cohorts for which noise cannot be correlated, or gains nothing by it.

    Args:
        cohorts: of the rounds.

    Raises:
        PrivacyError: when they are not in order, or a client may take part in two rounds in a row.
    """
    if cohorts.separation < 2:
        what = "dp-ftrl correlates the noise of rounds in which no client takes part twice, and here one may"
        hint = "privacy.cohort = 'in-order' and federation.cohort of at most half of the clients; or 'gaussian'"
        raise PrivacyError(what, hint=hint)


def following(cohorts: Cohorts, before: Tensor, fresh: Tensor) -> Tensor:
    """Correlate the noise of the next release with that of the last ones; see `draw`.

    Args:
        cohorts: in order.
        before: noise of the last releases [m, D], m = min(b - 1, i).
        fresh: standard normal noise times the mechanism's scale [1, D].

    Returns:
        x_i [1, D].
    """
    weights = band(cohorts.separation)[1 : len(before) + 1].flip(0)
    noise: Tensor = sensitivity(cohorts) * fresh - (weights @ before).unsqueeze(0)
    return noise


def draw(
    folder: Path, mechanism: Mechanism, cohorts: Cohorts, serial: int, position: int, fresh: Tensor
) -> tuple[Tensor, dict[str, bytes]]:
    """Draw the noise of the next release.

    x_i = s z_i - sum_k c_k x_(i-k), k = 1 ... min(b - 1, i): a row of C^-1 Z, with s = |c| multiplier clip

    Args:
        folder: of the run, with the noise of the releases before.
        mechanism: the clip, and the multiplier per participation.
        cohorts: in order.
        serial: number of the release in the ledger.
        position: i, how many releases of this row came before.
        fresh: standard normal noise times the mechanism's scale [1, D].

    Returns:
        x_i [1, D], and files to be on disk before the release is.

    Raises:
        PrivacyError: when the noise of a release before is not there.
    """
    count = min(position, cohorts.separation - 1)
    before = _read(folder / NAME, serial - count, count, fresh)
    noise = following(cohorts, before, fresh)
    rows = torch.cat((before, noise))  # one more than the next needs, as this one may never come out
    return noise, {NAME: _bytes(rows, serial + 1 - len(rows))}


def _bytes(rows: Tensor, first: int) -> bytes:
    about = json.dumps({"first": first, "sha256": _sum(rows, first)})
    data: bytes = safetensors.torch.save({"noise": rows.contiguous()}, {"about": about})
    return data


def _sum(rows: Tensor, first: int) -> str:
    return hashlib.sha256(f"{first} {list(rows.shape)}".encode() + rows.contiguous().numpy().tobytes()).hexdigest()


def _read(path: Path, first: int, count: int, like: Tensor) -> Tensor:
    """Read the noise of releases from a number on; that of one which never came out is left."""
    if not count:
        return like[:0]
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about, rows = json.loads(file.metadata()["about"]), file.get_tensor("noise")
        at = first - int(about["first"])
        if about["sha256"] != _sum(rows, about["first"]) or at < 0 or at + count > len(rows):
            raise ValueError("it is of other releases")
        wanted: Tensor = rows[at : at + count]
        if wanted.shape != (count, like.shape[1]):
            raise ValueError("it is of other messages")
        return wanted
    except (*UNREADABLE, SafetensorError) as error:
        what = f"{path} does not hold the noise of the last releases, from which that of the next one follows"
        raise PrivacyError(what, hint="restore the file from a copy, or start anew in another folder") from error

"""How long exact Gaussian processes of large clients will take, said before they run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import caller_stacklevel
from pacbayes_fl.methods.base import AnyMethod, unwrapped
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.inducing import AUTO, Inducing
from pacbayes_fl.study.file import Study

_LONG: Final = 300.0  # seconds that are worth a remark
_USUAL: Final = 2.5e10  # cubes of rows a second, of two cores
_PROBE: Final = 512  # rows of a matrix that is factored to see how fast this machine is
_BESIDE: Final = 1.3  # the kernel and its gradient, in times of factor and inverse
_PER_ROW: Final = 1.3e5  # networks and kernel columns of a row with points, in the probe's operations
_PER_PAIR: Final = 12.0  # products of a row with pairs of points


class Work(NamedTuple):
    """What a run does again and again.

    Args:
        times: evaluations of every client's evidence.
        rows: of each client that takes part in one of them.
        rule: of its inducing points.
    """

    times: float
    rows: Sequence[int]
    rule: Inducing | None

    def operations(self) -> float:
        """Multiplications, in units of those of a Cholesky factor and its inverse."""
        return self.times * sum(map(self._of_client, self.rows))

    def exact_operations(self) -> float:
        """Those of clients without points alone."""
        return self.times * sum(self._of_client(rows) for rows in self.rows if not self._sparse(rows))

    def _of_client(self, rows: int) -> float:
        if self.rule is None or not self._sparse(rows):
            return _BESIDE * float(rows) ** 3
        return rows * (_PER_ROW + _PER_PAIR * min(rows, self.rule.points) ** 2)

    def _sparse(self, rows: int) -> bool:
        return self.rule is not None and rows > self.rule.above


def work_of(study: Study, method: AnyMethod, sizes: Sequence[int], done: int = 0) -> Work | None:
    """Count the evidences of a run.

    Args:
        study: what runs.
        method: as built; a temperature or folds around it do not count.
        sizes: real rows of every client.
        done: rounds that were finished before.

    Returns:
        The work; None of a method without a prior over functions.
    """
    method = unwrapped(method)
    model, steps = getattr(method, "model", None), getattr(method, "steps", 0)
    if not isinstance(model, FunctionModel) or hasattr(method, "inducing"):
        return None
    share = min(1.0, (study.federation.cohort or len(sizes)) / max(1, len(sizes)))
    rounds = (study.plan.rounds - done) * share if study.recipe.rounds else steps
    drawn = getattr(method, "minibatch", None)
    return Work(rounds * getattr(method, "particles", 1), [min(m, drawn or m) for m in sizes], model.inducing)


def announce(study: Study, method: AnyMethod, batch: ClientBatch, done: int = 0) -> None:
    """Warn of a run on the CPU whose exact evidences take minutes, and say how long inducing points would take.

    The time is that of a small matrix on this machine now, so that what else runs here counts.

    Args:
        study: what is about to run.
        method: as built.
        batch: rows that train.
        done: rounds that were finished before.

    Warns:
        UserWarning: with both times, and the option.
    """
    sizes = [int(m) for m in batch.size.tolist()] if tensors.on_host(batch.x) else []
    work = work_of(study, method, sizes, done)
    if work is None or work.exact_operations() < _LONG * _USUAL:
        return
    text = remark(work, _operations_a_second())
    if text is not None:
        warnings.warn(text, stacklevel=caller_stacklevel())


def remark(work: Work, speed: float) -> str | None:
    """Say how long a run takes, and how long it would take with inducing points.

    Args:
        work: of the run.
        speed: operations a second.

    Returns:
        One line; None where it is not long, or points would not make it shorter by half.
    """
    seconds = work.operations() / speed
    auto = max(work.rows, default=0) > AUTO.above and work.rule is None
    other = Work(work.times, work.rows, AUTO if auto else Inducing(AUTO.points)).operations() / speed
    if seconds < _LONG or other > seconds / 2:
        return None
    option = "'auto'" if auto else str(AUTO.points)
    what = f"exact Gaussian processes of clients with up to {max(work.rows)} rows take about {_words(seconds)} here"
    return f"{what}; model.inducing = {option} takes about {_words(other)}"


def _operations_a_second() -> float:
    matrix = torch.eye(_PROBE, dtype=torch.float64) + 0.5
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        torch.cholesky_inverse(torch.linalg.cholesky(matrix))
        taken.append(time.perf_counter() - begun)
    return _PROBE**3 / max(min(taken), 1e-9)


def _words(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    return f"{max(1, round(seconds / 60))} minutes" if seconds >= 90 else "a minute"

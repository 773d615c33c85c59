"""Callbacks after every round of a run: early stopping, logs, and users' own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pacbayes_fl.errors import PacBayesFLError, StudyError, shown
from pacbayes_fl.files import JsonTable
from pacbayes_fl.names import to_cell
from pacbayes_fl.results.metrics import METRICS
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.rounds import RoundRecord, to_line


@runtime_checkable
class Callback(Protocol):
    """An object that is told of every round; a subclass has to define `on_round` alone.

    Example:
        >>> import pacbayes_fl as fl
        >>> class Print(fl.Callback):
        ...     def on_round(self, record):
        ...         print(record.round, sorted(record.values)[0])
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, callbacks=[Print()])
        1 jittered
        2 jittered
    """

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Called at the start of a run.

        Args:
            past: records of the rounds that are finished, of a run that goes on.
        """

    def on_round(self, record: RoundRecord) -> bool | None:
        """Look at a round.

        Args:
            record: of the round, with its scores where it is evaluated.

        Returns:
            True to end the run after this round, which is then scored and saved as the last; anything else goes on.
        """
        ...


def check(callbacks: Sequence[Callback]) -> None:
    """Refuse objects that cannot be told of rounds, before anything is trained.

    Args:
        callbacks: as `run` takes them.

    Raises:
        StudyError: naming the first object that is no callback.
    """
    for one in callbacks:
        if isinstance(one, type) or not isinstance(one, Callback):
            what = f"callbacks must be objects with on_start and on_round, got {shown(one)}"
            raise StudyError(what, hint="derive a class from pacbayes_fl.Callback, and give an instance of it")


class EarlyStop(Callback):
    """Ends a run when a number of its rounds has not become better for a while.

    The number is by default what the method climbs or descends on training rows, so that no test row has a part in the
    choice. A score on test rows, such as "rsmse", makes the result's own test score optimistic: labels name the number.

    Args:
        patience: rounds in which the number is recorded without becoming better, after which the run ends.
        min_delta: by how much it has to become better, in its own unit.
        monitor: name of the number: see `pacbayes_fl list recorded`, or a headline metric; the method's objective when
            None.
        better: "lower" or "higher"; as it is known of the number when None.

    Raises:
        StudyError: when patience is below 1, min_delta is negative or not finite, or the direction of the number is
            not known.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=9", "method.particles=2"])
        >>> result = fl.run(study, callbacks=[fl.EarlyStop(patience=2, min_delta=1e9)])
        >>> len(result.rounds)
        3
    """

    def __init__(
        self,
        patience: int = 10,
        min_delta: float = 0.0,
        monitor: str | None = None,
        better: Literal["lower", "higher"] | None = None,
    ) -> None:
        """Wait for the first round."""
        if patience < 1:
            raise StudyError(f"patience must be at least 1, got {patience}")
        if not 0 <= min_delta < math.inf:
            raise StudyError(f"min_delta must be at least 0 and finite, got {min_delta:g}")
        if better not in (None, "lower", "higher"):
            raise StudyError(f"better must be 'lower' or 'higher', got {shown(better)}")
        self.patience, self.min_delta, self.monitor, self.better = patience, min_delta, monitor, better
        if monitor is not None and better is None:
            self._direction(monitor)
        self._best, self._waited = math.inf, 0

    def __str__(self) -> str:
        """Say what it waits for."""
        return (
            f"EarlyStop(patience={self.patience}, min_delta={self.min_delta:g}, monitor={self.monitor or 'objective'})"
        )

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Reset, and count the finished rounds."""
        self._best, self._waited = math.inf, 0
        for record in past:
            self.on_round(record)

    def on_round(self, record: RoundRecord) -> bool:
        """Compare the round with the best one so far."""
        name = self.monitor or _objective(record.values)
        if name not in record.values:
            return False  # such as a score, of a round that is not evaluated
        value = record.values[name] * (1 if (self.better or self._direction(name)) == "lower" else -1)
        if value < self._best - self.min_delta or (self._best == math.inf and math.isfinite(value)):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        return self._waited >= self.patience

    def _direction(self, name: str) -> Literal["lower", "higher"]:
        own = name.split(".")[-1]  # without "pm.", "gm." and "validation."
        metric = METRICS.get(own)
        if metric is not None and metric.better in ("lower", "higher"):
            return "lower" if metric.better == "lower" else "higher"
        if own in RECORDED and RECORDED[own].objective:
            return "lower" if own == "loss" else "higher"
        raise StudyError(
            f"it is not known whether {name!r} is better lower or higher", hint="set better to one of them"
        )


def _objective(values: Mapping[str, float]) -> str:
    """Name what the method climbs or descends."""
    for name in values:
        if name in RECORDED and RECORDED[name].objective:
            return name
    known = ", ".join(values) or "nothing"
    raise StudyError(f"the rounds record no objective, but {known}", hint="set monitor to one of these")


class Told:
    """Tells callbacks of a run, and remembers which of them ended it.

    Args:
        callbacks: as `run` is given them.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Nobody has ended it yet."""
        self._callbacks, self.ended = callbacks, list[str]()

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Tell all of them of the rounds that are finished.

        Args:
            past: their records.
        """
        for one in self._callbacks:
            one.on_start(past)

    def on_round(self, record: RoundRecord) -> bool:
        """Tell all of them, also after one that ends the run.

        Args:
            record: of the round.

        Returns:
            Whether any of them ends the run.
        """
        said = [one for one in self._callbacks if one.on_round(record) is True]
        self.ended += [str(one) if isinstance(one, EarlyStop) else type(one).__name__ for one in said]
        return bool(said)

    def notes(self, last: int, rounds: int) -> JsonTable:
        """Give entries of `labels.json` on the end of the run.

        Args:
            last: round that is finished.
            rounds: that were asked for.

        Returns:
            "ended", where a callback ended it.
        """
        return {"ended": f"after round {last} of {rounds} by {', '.join(self.ended)}"} if self.ended else {}


class TensorBoard(Callback):
    """Writes every number of every round where TensorBoard shows it, by rounds; needs the extra `tensorboard`.

    Args:
        folder: of the event files, such as "runs/mine"; `tensorboard --logdir runs` shows all that lie below.

    Raises:
        PacBayesFLError: when TensorBoard is not installed.

    Example:
        >>> import pacbayes_fl as fl
        >>> from pathlib import Path
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, callbacks=[fl.TensorBoard("log")])
        >>> len(list(Path("log").glob("events.*")))
        1
    """

    def __init__(self, folder: Path | str) -> None:
        """Make the writer, which makes the folder."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            what = "writing for TensorBoard needs tensorboard"
            raise PacBayesFLError(what, hint="pip install 'pacbayes_fl[tensorboard]'") from error
        self._folder = str(folder)
        self._writer = SummaryWriter(self._folder)

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Let what was written behind the last finished round be hidden: those rounds are played again."""
        from torch.utils.tensorboard import SummaryWriter

        if past:
            self._writer.close()
            self._writer = SummaryWriter(self._folder, purge_step=past[-1].round + 1)

    def on_round(self, record: RoundRecord) -> None:
        """Write the numbers of a round, its seconds and its clients among them."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name.replace(".", "/"), value, record.round)
        self._writer.flush()


class RoundLog(Callback):
    """Writes every round to a file as it is finished, for a program that reads along.

    Args:
        path: ".jsonl", of a line per round as in the `rounds.jsonl` of a run folder; or ".csv", of a line per number:
            round, name and value. A file that is there is replaced; a run that goes on writes its earlier rounds first.

    Raises:
        StudyError: of another ending.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, callbacks=[fl.RoundLog("log.csv")])
        >>> open("log.csv").read().splitlines()[:2]
        ['round,name,value', '1,clients,24']
    """

    def __init__(self, path: Path | str) -> None:
        """Look at the ending alone: nothing is written before a run starts."""
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".csv"):
            raise StudyError(f"rounds are written to .jsonl or .csv, got {self.path}")

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Begin the file, with the rounds that are finished."""
        head = "" if self.path.suffix == ".jsonl" else "round,name,value\n"
        self.path.write_text(head + "".join(map(self._lines, past)), encoding="utf-8")

    def on_round(self, record: RoundRecord) -> None:
        """Write a round behind the others."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._lines(record))

    def _lines(self, record: RoundRecord) -> str:
        if self.path.suffix == ".jsonl":
            return to_line(record)
        return "".join(f"{record.round},{to_cell(name)},{value!r}\n" for name, value in numbers(record).items())


def numbers(record: RoundRecord) -> dict[str, float]:
    """Give every number of a round, how many clients took part and how many were dropped among them.

    Args:
        record: of the round.

    Returns:
        By name.
    """
    return {"clients": record.clients, "dropped": len(record.dropped), **record.values}

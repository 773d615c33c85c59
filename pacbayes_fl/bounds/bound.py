"""The record of a bound in the table: a function, its formula, its inputs and its assumptions.

A record is all that a new bound has to say. Commands, certificates of runs, records in JSON, listings and the laws of
`bounds.laws` read it; nothing else names a bound.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from torch import Tensor

from pacbayes_fl.bounds.certificate import Certificate, Formula, MonteCarlo
from pacbayes_fl.bounds.checks import Number
from pacbayes_fl.bounds.premises import Average, Posterior, Premises
from pacbayes_fl.errors import AssumptionError, several

World = Literal[
    "fair coins",
    "rare losses",
    "unbounded losses",
    "chains",
    "drawn hypotheses",
    "fixed predictor",
    "private prior",
    "finite federation",
    "new clients",
]
"""Worlds whose truth is known, in which `bounds.coverage` counts how often a bound fails."""

PerClient = Tensor
"""Numbers with one for each client in the last dimension [*, K]."""

ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "risk": "empirical risk [] or [K], in the unit of the loss",
        "variance": "variance of the losses over the rows, averaged over the posterior [] or [K], in squared units of"
        " the loss",
        "kl": "KL divergence of the posterior from the prior [] or [K], or of the hyper-posterior from the hyper-prior"
        " [*], in nats",
        "log_ratio": "ln dQ/dP at the drawn hypothesis [] or [K], in nats",
        "tandem_risk": "share of rows that two draws of the posterior both miss [] or [K]",
        "n": "rows [] or [K]",
        "losses": "losses of a client's rows [N] or [K, N], in the unit of the loss",
        "rows": "how many of the losses count, from the first on [] or [K]; all when not given",
        "doubtful": "how many of the losses after these may repeat others: they count where that is worse [] or [K]",
        "beta": "temperature that was fixed before the rows were seen [] or [K], in 1 / unit of the loss",
        "log_z": "ln Z of the bounded loss, not of a likelihood [] or [K], in nats",
        "free_energy": "E F_i over the hyper-posterior [*, K], in the unit of the loss",
        "m": "rows m_i [] or [K]",
        "lam": "lambda, fixed beforehand, in 1 / unit of the loss [*]",
        "later": "rows that are still to come [] or [K]",
        "weights": 'weights w_i of the clients: "equal", or by "beta"',
        "unknown": "whether it is not known if more rows will come [] or [K]",
        "n2": "number of clients that expect later rows",
        "v": "small constant of PAC-PFL's Theorem 4.2",
        "variance_factor": "s^2 of a sub-gamma loss, stated, [] or [K], in squared units of the loss",
        "scale": "c of a sub-gamma loss, stated, [] or [K], in the unit of the loss",
        "shares": "of hypotheses and rows whose excess is at least 0, 1 - gamma and 1, by step [T - 1, 3] or"
        " [K, T - 1, 3]",
        "gammas": "weights of the posteriors before in excess losses [T - 1] or [K, T - 1]",
        "kls": "KL divergence of every posterior of a chain from the one before [T] or [K, T], in nats",
        "counts": "rows that the posterior before has not seen [T] or [K, T]",
        "weight": "lambda [] or [K], strictly between 0 and 2; the best when not given",
        "delta": "probability with which it may fail, [] or [K], or [*] of averages",
        "premises": "what the bound rests on; bounds on averages set `average` themselves",
        "monte_carlo": "how the risk or the free energies were estimated, if they were",
    }
)
"""What the arguments of bounds mean. A function documents what is its own; every one returns a `Certificate` and raises
AssumptionError or ShapeError where no number can be formed, as for an infinite KL."""

STATED: Final = (
    *("risk", "variance", "kl", "n", "beta", "log_z", "log_ratio", "tandem_risk", "variance_factor", "scale"),
)
"""Arguments that the command `bound` takes: one number each."""

_MEASURED = MappingProxyType(
    {
        "client": frozenset(
            ("risk", "variance", "kl", "n", "beta", "log_z", "log_ratio", "losses", "variance_factor", "scale")
        ),
        "clients on average": frozenset(("free_energy", "beta", "m", "kl")),
        "new client on average": frozenset(("free_energy", "beta", "m", "kl")),
    }
)
_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_UNDERSTOOD = ("delta", "premises", "monte_carlo")


_UNSTATED: Any = None  # so that the error can name all that is missing at once
_TO_STATE = MappingProxyType(
    {
        "name": "name = the word that commands take, such as 'refined-pinsker'",
        "function": "function = what gives the certificate",
        "formula": "formula = what turns the certificate's terms into named parts",
        "needs": "needs = the numbers that the function takes, such as ('risk', 'kl', 'n')",
        "poolable": "poolable = True where it holds at the pooled rows of several clients, else False",
        "world": f"world = where its coverage is tested, one of {', '.join(get_args(World))}",
    }
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Bound:
    """A bound on a true risk, and all that is to be known of it.

    Its docstring is the function's: the first line is what listings print, the paragraph after it is the formula.

    Args:
        name: under which commands ask for it, of lower-case letters, digits, "-" and ".".
        function: gives the certificate; its arguments are those of `ARGUMENTS`, or its own with defaults.
        formula: turns the certificate's terms into the parts that sum to the bound, as `certify` takes it.
        needs: arguments of the function that are numbers without a default, beside delta.
        poolable: whether it also holds at the pooled rows of clients that are not alike, each with a posterior and a
            prior of its own (`pooled`); needs exactly risk, kl and n.
        world: in which its coverage is tested: "finite federation" for clients on average, "new clients", or any other
            for a client.
        average: over what its risk is averaged; "client" is each on its own.
        posterior: the posteriors that it is about: "any", those "no worse than the prior", or the "exact Gibbs" one.
        private: whether the prior has to be one that was drawn with privacy from the rows of the bound.
        fixed: whether it is on one predictor that was fixed before the rows, and knows no posterior.
        counts: whether it counts errors, of the 0-1 loss alone: one more error and one more row never make it smaller.
        equal_beta: whether all clients must have the same beta.
        anytime: whether it holds at all numbers of rows at once, so that rows may keep arriving at no further cost.
        as_printed: whether it stands as a paper prints it, and not always holds: then its certificates say so.
        example: further arguments with which the laws call it.
        unmeasured: why `certify` does not make it of a run, of a bound that needs what no run has.
    """

    name: str = _UNSTATED
    function: Callable[..., Certificate] = _UNSTATED
    formula: Formula = _UNSTATED
    needs: tuple[str, ...] = _UNSTATED
    poolable: bool = _UNSTATED
    world: World = _UNSTATED
    average: Average = "client"
    posterior: Posterior = "any"
    private: bool = False
    fixed: bool = False
    counts: bool = False
    equal_beta: bool = False
    anytime: bool = False
    as_printed: bool = False
    example: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unmeasured: str = ""

    def __post_init__(self) -> None:
        """Check that the record is complete and fits its function."""
        own = f"the bound {self.name!r}" if self.name is not None else "a bound without a name"
        gaps = [how for attribute, how in _TO_STATE.items() if getattr(self, attribute) is None]
        if gaps:
            raise AssumptionError(f"{own} leaves out {len(gaps)} of its attributes", hint="; ".join(gaps))
        several("needs", self.needs)
        if problems := list(self._problems()):
            raise AssumptionError(f"{own} does not fit its function: {'; '.join(problems)}", hint="see `bounds.Bound`")

    def _problems(self) -> list[str]:
        result = []
        known = inspect.signature(self.function).parameters
        given = (*self.needs, *_UNDERSTOOD, *self.example)
        unbound = [name for name, each in known.items() if each.default is each.empty and name not in given]
        if not _NAME.fullmatch(self.name):
            result.append(f"name must be of lower-case letters, digits, '-' and '.', got {self.name!r}")
        if unused := [name for name in (*self.needs, "delta", "premises") if name not in known]:
            result.append(f"the function has no argument {', '.join(unused)}")
        if unbound:
            result.append(f"needs leaves out {', '.join(unbound)}, which the function cannot do without")
        if self.average not in _MEASURED:
            result.append(f"average must be one of {', '.join(_MEASURED)}, got {self.average!r}")
        if self.world not in get_args(World):
            result.append(f"world must be one of {', '.join(get_args(World))}, got {self.world!r}")
        if self.poolable and (set(self.needs) != {"risk", "kl", "n"} or self.average != "client"):
            result.append("poolable bounds are on a client and need risk, kl and n alone")
        if not self.statement and sys.flags.optimize < 2:  # -OO takes docstrings away
            result.append(
                "the docstring of the function must be a line on what it bounds, an empty line and the formula"
            )
        return result

    @property
    def summary(self) -> str:
        """The bounded risk and the source, in a line."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def statement(self) -> str:
        """The inequality, as the function's docstring states it."""
        paragraphs = (inspect.getdoc(self.function) or "").split("\n\n")
        stated = next((each for each in paragraphs[1:] if "<=" in each), "")
        return " ".join(stated.split())

    @property
    def chooses(self) -> bool:
        """Whether it holds for all posteriors at once, so that the rows may choose among them at no cost."""
        return self.group is None and self.posterior == "any" and not {"kl", "log_ratio"}.isdisjoint(self.needs)

    @property
    def estimable(self) -> bool:
        """Whether it takes a risk, or free energies, that were estimated by draws."""
        return "monte_carlo" in inspect.signature(self.function).parameters

    @property
    def certifiable(self) -> bool:
        """Whether a run has all the numbers that it needs, beside constants that are stated."""
        return _MEASURED[self.average].issuperset(self.needs)

    @property
    def stated(self) -> bool:
        """Whether the command `bound` takes all that it needs, as numbers of one client."""
        return self.group is None and {*STATED}.issuperset(self.needs)

    @property
    def group(self) -> str | None:
        """Whose rows it stands on: "existing" or "new" clients of a run; None for each client, of either group."""
        return {"client": None, "new client on average": "new"}.get(self.average, "existing")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Its assumptions beside the numbers."""
        said = ["the rows of a client are independent draws of its distribution"]
        if self.fixed:
            said.append("the predictor was fixed before the rows, or released with privacy from them, at its cost")
        elif self.private:
            said.append("the prior was drawn with differential privacy from the rows")
        elif self.group is None:
            said.append(
                "the prior has not seen the rows, or was drawn from them with differential privacy, at its cost"
            )
        else:
            said.append("the hyper-prior has not seen any row of any client, and clients are independent")
        if self.group == "new":
            said.append("seen and new clients are independent draws of one distribution of clients")
        if self.posterior == "exact Gibbs":
            said.append("the posterior is the exact Gibbs posterior of the same loss, beta and rows")
        elif self.posterior != "any":
            said.append("no client's posterior has more free energy than its prior")
        if "beta" in self.needs:
            said.append(f"{'one ' if self.equal_beta else ''}beta was fixed before the rows were seen")
        if "variance_factor" in self.needs:
            said.append(
                "the loss is sub-gamma below its mean, with the stated constants, under every hypothesis of the prior"
            )
        if self.as_printed:
            said.append(
                "the conditions of the printed theorem, which its proof does not cover in full: see the reasons"
            )
        return tuple(said)

    @property
    def pooling(self) -> str:
        """Its statement for several clients at once."""
        if self.group is not None:
            return f"none: it is on {'seen' if self.group == 'existing' else 'new'} clients on average"
        if self.poolable:
            return "also at the pooled rows of clients that are not alike, by `bounds.size_weighted`, with KLs summed"
        return "none: it is on each client on its own"

    def described(self) -> list[tuple[str, str]]:
        """The entries of its description, by label."""
        return [
            ("bound", self.summary),
            ("formula", self.statement),
            *((name, ARGUMENTS.get(name, "see its docstring")) for name in self.needs),
            *(("assumes", text) for text in self.assumptions),
            ("pooled", self.pooling),
            ("coverage", f"counted in the world {self.world!r}"),
        ]

    def certify(
        self,
        numbers: Mapping[str, object],
        delta: Number,
        premises: Premises,
        monte_carlo: MonteCarlo | None = None,
        **options: object,
    ) -> Certificate:
        """Compute its certificate from named numbers.

        Args:
            numbers: all that it needs by name; others are left aside.
            delta: probability with which it may fail, [] or [K].
            premises: its assumptions.
            monte_carlo: how the risk or the free energies were estimated, if they were.
            **options: further arguments of the function.

        Returns:
            The certificate.

        Raises:
            AssumptionError: when a number is missing, an estimate is none that it can pay for, or no number can be
                formed.
            ShapeError: when a number is neither one nor one a client.

        Example:
            >>> from pacbayes_fl.bounds import BOUNDS, Premises, Provenance
            >>> numbers, premises = {"risk": 0.1, "kl": 5.0, "n": 1000}, Premises(Provenance("split"), independent=True)
            >>> found = [BOUNDS[name].certify(numbers, 0.05, premises) for name in ("seeger", "mcallester")]
            >>> [round(one.value.item(), 3) for one in found]
            [0.152, 0.176]
        """
        if missing := [name for name in self.needs if numbers.get(name) is None and name not in options]:
            raise AssumptionError(f"the bound {self.name!r} needs {', '.join(missing)}")
        if monte_carlo is not None:
            if not self.estimable:
                what = f"the bound {self.name!r} has no use for draws: its function takes no monte_carlo"
                raise AssumptionError(what, hint="an exact risk, or another bound")
            options["monte_carlo"] = monte_carlo
        given = {name: numbers[name] for name in self.needs if name not in options}
        return self.function(**given, delta=delta, premises=premises, **options)

"""Whether a method keeps the laws that the engine, certificates and deployment rely on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError, kinds_checked, shown
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod, Method
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.study.config.plugins import recipe_of, stated_recipe
from pacbayes_fl.testing.laws import LAWS
from pacbayes_fl.testing.scene import CLASSES, federation, played, strangers_of

_FEATURES: Final = 3
_SEED: Final = 11
Tried = TypeVar("Tried")


class LawError(AssertionError):
    """A method, a rule or a loss breaks laws.

    Args:
        name: of its class or record.
        broken: what was wrong, by the name of the law.
    """

    def __init__(self, name: str, broken: dict[str, str]) -> None:
        """Say all of it, a law a line."""
        self.laws = tuple(broken)
        super().__init__("\n".join([f"{name} breaks {', '.join(broken)}", *(f"{k}: {v}" for k, v in broken.items())]))


@kinds_checked
def check_method(
    method: AnyMethod | type[AnyMethod],
    clients: ClientBatch | None = None,
    *,
    labels: bool = False,
    without: Collection[str] = (),
    **options: object,
) -> None:
    """Check that a method keeps all laws: call it in a test of your own.

    A client's half depends on that client alone, however clients are called ("batch", "permutation", "padding"); runs
    are repeatable ("seed"), go on as if never interrupted ("resume") and are the same over a network ("remote"); one
    client that fails is left out and moves nobody ("failure"); clients that never trained predict ("newcomers");
    nothing is changed in place ("inputs"), trees of clients begin with K ("leaves"), and no step asks a device for a
    number ("device").

    Args:
        method: an instance; or a class, which is made with a tiny model of the kind that its field `model` is
            annotated with.
        clients: rows of three clients or more that an instance can take, with numbers that are finite; without them the
            federation has three features.
        labels: whether a class is to learn labels; of an instance the clients say it.
        without: names of laws that the method does not claim to keep.
        **options: of a class, by name, such as few steps.

    Raises:
        LawError: naming every law that is broken, and how; an AssertionError.
        StudyError: when the class cannot be made, or a name in `without` is no law.

    Example:
        >>> import pacbayes_fl as fl
        >>> from pacbayes_fl.testing import check_method
        >>> check_method(fl.FedProx, steps=2, mu=0.1)
    """
    require_known(without, LAWS)
    made = _made(method, labels, options)
    batch = federation(_FEATURES, labels) if clients is None else clients
    name = type(made).__name__
    if batch.clients < 3:
        raise StudyError(f"clients must be at least 3, got {batch.clients}")
    classes = None
    if not batch.y.is_floating_point():
        classes = CLASSES if clients is None else int(batch.y.max()) + 1
    try:
        scene = played(made, batch, strangers_of(batch, classes), FederationPlan(rounds=2, seed=_SEED))
    except Exception as error:
        raise LawError(name, {"rounds": _said(error)}) from error
    require_kept(name, scene, LAWS, without)


def require_known(without: Collection[str], laws: Mapping[str, object]) -> None:
    """Refuse to leave a law out that there is not.

    Args:
        without: names of laws that are left out.
        laws: all of them.

    Raises:
        StudyError: naming the first that is no law.
    """
    if unknown := [name for name in without if name not in laws]:
        raise StudyError(f"no law is called {shown(unknown[0])}", hint=f"laws: {', '.join(laws)}")


def require_kept(
    name: str, thing: Tried, laws: Mapping[str, Callable[[Tried], None]], without: Collection[str]
) -> None:
    """Try laws one after another.

    Args:
        name: of what is to keep them.
        thing: that which is.
        laws: each raises anything where it is broken.
        without: names of laws that are left out.

    Raises:
        LawError: naming every law that is broken, and how.
    """
    broken = {}
    for law, keeps in laws.items():
        if law not in without:
            try:
                keeps(thing)
            except Exception as error:  # whatever a user's code raises breaks the law
                broken[law] = _said(error)
    if broken:
        raise LawError(name, broken)


def _made(method: AnyMethod | type[AnyMethod], labels: bool, options: dict[str, object]) -> AnyMethod:
    if isinstance(method, Method):
        if options:
            raise StudyError(f"options are of a class, and {type(method).__name__} is made", hint="leave them out")
        return method
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise StudyError(f"check_method takes a method or its class, got {shown(method)}")
    home = sys.modules.get(method.__module__)  # None of a class that `exec` has made
    recipe = (None if home is None else stated_recipe(method, home)) or recipe_of(method)
    likelihood, outputs = (Categorical(CLASSES), CLASSES) if labels else (Gaussian(), 1)
    network = BayesianMLP((_FEATURES, 4, outputs), likelihood, torch.float64)
    model = network if recipe.model == "weights" else DeepKernelGP(_FEATURES, (3,), (3,))
    features: Sequence[str] = ("lag_1", *(f"x_{k}" for k in range(1, _FEATURES)))
    return recipe.make(model, features, **options)


def _said(error: Exception) -> str:
    """Give an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]

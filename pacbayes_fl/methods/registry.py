"""Every method by name. A name is the address of a recipe; nothing that computes is imported before it is asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pacbayes_fl.methods.recipe import Recipe


class Registry(Mapping[str, "Recipe"]):
    """Recipes by name, each imported when it is first asked for.

    Args:
        homes: where each stands, such as "pac_pfl:RECIPE": a module of this package, and its name there.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        """Remember where recipes stand."""
        self._homes = MappingProxyType({**homes})
        self._loaded: dict[str, Recipe] = {}

    def __getitem__(self, name: str) -> Recipe:
        """Give the recipe of a method."""
        if name not in self._loaded:
            module, attribute = self._homes[name].split(":")
            self._loaded[name] = getattr(import_module(f"{__package__}.{module}"), attribute)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a method of this name."""
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._homes)

    def __len__(self) -> int:
        """Number of methods."""
        return len(self._homes)

    def titles(self) -> dict[str, str]:
        """Read the titles off the sources, where each is the first argument of its recipe; no method is imported.

        Returns:
            Titles by name.
        """
        result = {}
        for name, home in self._homes.items():
            module, attribute = home.split(":")
            result[name] = _titles(Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py"))[attribute]
        return result


def _titles(path: Path) -> dict[str, str]:
    """Titles of a module's recipes by the names that it gives them."""
    result = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            named = [one.value for one in node.value.keywords if one.arg == "title"]
            for one in (*named, *node.value.args[:1]):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    result[node.targets[0].id] = one.value
                    break
    return result


METHODS = Registry(
    {
        "pac-pfl": "pac_pfl.gp:RECIPE",
        "pfedgp": "baselines.pfedgp:RECIPE",
        "vanilla-gp": "baselines.vanilla_gp:RECIPE",
        "pooled-gp": "baselines.pooled_gp:RECIPE",
        "ridge": "baselines.ridge:RECIPE",
        "pooled-ridge": "baselines.ridge:POOLED",
        "persistence": "baselines.persistence:RECIPE",
        "ard-gp": "baselines.ard_gp:RECIPE",
        "gbt": "baselines.gbt:RECIPE",
        "pooled-gbt": "baselines.gbt:POOLED",
        "pooled-ensemble": "baselines.ensemble:RECIPE",
        "fed-ensemble": "baselines.fed_ensemble:RECIPE",
        "pfedbayes": "variational.pfedbayes:RECIPE",
        "pbb": "variational.pbb:RECIPE",
        "sfedbayes": "variational.sfedbayes:RECIPE",
        "cfedbayes": "variational.cfedbayes:RECIPE",
        "bpfed": "variational.bpfed:RECIPE",
        "fedavg": "baselines.fedavg:RECIPE",
        "fedavg-ft": "baselines.fedavg:FINE_TUNED",
        "fedprox": "baselines.fedprox:RECIPE",
        "local": "baselines.local:RECIPE",
        "fedper": "baselines.split:RECIPE",
        "fedrep": "baselines.split:FEDREP",
        "lg-fedavg": "baselines.split:LG_FEDAVG",
        "fedbabu": "baselines.split:FEDBABU",
        "fedbn": "baselines.split:FEDBN",
        "ifca": "baselines.clustered:RECIPE",
        "fesem": "baselines.clustered:FESEM",
        "fedcfl": "baselines.fedcfl:RECIPE",
        "fedamp": "baselines.fedamp:RECIPE",
        "heurfedamp": "baselines.fedamp:HEURISTIC",
        "fedsi": "fedsi:RECIPE",
        "fedsi-fac": "fedsi:FACTORISED",
        "pac-pfl-bnn": "pac_pfl.bnn:RECIPE",
        "vanilla-bnn": "baselines.vanilla_bnn:RECIPE",
        "pooled-bnn": "baselines.pooled_bnn:RECIPE",
        "ditto": "baselines.ditto:RECIPE",
        "mtl": "baselines.mtl:RECIPE",
        "pfedme": "baselines.pfedme:RECIPE",
        "per-fedavg": "baselines.per_fedavg:RECIPE",
        "fedpop": "baselines.fedpop:RECIPE",
        "bnfed": "baselines.bnfed:RECIPE",
        "fedpa": "baselines.fedpa:RECIPE",
        "apfl": "baselines.apfl:RECIPE",
        "fedem": "baselines.fedem:RECIPE",
        "knn-per": "baselines.knn_per:RECIPE",
        "scaffold": "baselines.scaffold:RECIPE",
        "pfedgp-tree": "baselines.pfedgp_tree:RECIPE",
    }
)
"""Methods by name."""

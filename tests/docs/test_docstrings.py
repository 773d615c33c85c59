import ast
import inspect
import re
from pathlib import Path

import pytest

import pacbayes_fl
from docs.docstrings import resolve, rewritten
from docs.formulas import is_formula, to_tex
from docs.pages import methods
from pacbayes_fl.methods import METHODS

GP = "pacbayes_fl.methods.pac_pfl.gp"
PACKAGE = Path(pacbayes_fl.__file__).parent


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("svgd.direction", "pacbayes_fl.server.svgd.direction"),
        ("federation.engine", "pacbayes_fl.federation.engine"),
        ("init_server", f"{GP}.FederatedSVGD.init_server"),
        ("MeanField", "pacbayes_fl.posteriors.weights.mean_field.MeanField"),
        ("nothing.like_it", None),
        ("[model] kind", None),
    ],
)
def test_a_name_leads_to_where_it_is_defined(code: str, target: str | None) -> None:
    assert resolve(code, GP) == target


def test_formulas_boxes_and_names_are_rewritten_and_sections_are_not() -> None:
    text = """Bound *it*.

    y_k = 1 / n

    As `init_server` says of `unit`s.

        2  draw rows            `init_server`
        4  G_k = grad ln Z_k    `svgd.direction`

    Args:
        *more: x_i and y_.

    Returns:
        One: or two.
    """
    shown = "\n".join(rewritten(inspect.cleandoc(text).splitlines(), GP))
    assert r".. math::" in shown and "y_{k} = 1 / n" in shown and r"Bound \*it\*." in shown
    assert f":py:obj:`init_server <{GP}.FederatedSVGD.init_server>`" in shown and r"``unit``\ s" in shown
    assert ".. list-table::" in shown and r":math:`G_{k} = \nabla" in shown
    assert "*more: x_i and y\\_." in shown and ":returns: One: or two." in shown


@pytest.mark.slow
def test_every_formula_of_the_package_can_be_typeset() -> None:
    found = 0
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) else None
            for paragraph in (text or "").split("\n\n")[1:]:
                lines = paragraph.splitlines()
                if is_formula(lines):
                    found += 1
                    for tex in map(to_tex, lines):
                        braces = re.sub(r"\\[{}]", "", tex)
                        assert braces.count("{") == braces.count("}") and "__" not in tex, (file, tex)
    assert found > 100


def test_every_step_of_an_algorithm_leads_into_the_code() -> None:
    for file in methods.BOXES.glob("*.txt"):
        module = METHODS[file.stem].method.__module__
        steps = [line for line in file.read_text("utf-8").splitlines() if line.startswith("    ")]
        assert len(steps) >= 3, file.name
        for step in steps:
            names = re.findall(r"`([^`]+)`", step)
            assert names and all(resolve(name, module) for name in names), (file.name, step)

"""What errors call the method of a study: the name that the study gives it, where the method knows its class alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.study.file import Study


@contextmanager
def as_named(study: Study) -> Iterator[None]:
    """Have errors inside call the method as its study does, "gbt" and not "LocalGBT".

    Args:
        study: of the method; one whose method a program made is left its class.

    Raises:
        PacBayesFLError: that came up inside, of the same class and with the same fields.
    """
    try:
        yield
    except PacBayesFLError as error:
        words = rf"\b{re.escape(study.recipe.method.__name__)}\b"
        if study.instances.method is not None or not re.search(words, error.message):
            raise
        what = re.sub(words, lambda _: study.method.name, error.message)
        more = {"client": error.client, "round": error.round, "cause": error.cause, "hint": error.hint}
        raise type(error)(what, **more) from error  # type: ignore[arg-type]

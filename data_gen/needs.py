"""The optional packages of the PV data."""

from __future__ import annotations

from typing import Any

from data_gen.errors import DataGenError


def need_pvlib() -> Any:
    """Import pvlib, which brings pandas.

    Returns:
        The module.

    Raises:
        DataGenError: pvlib or pandas is not installed.
    """
    try:
        import pvlib
    except ImportError as error:
        raise DataGenError("the PV data need pvlib: pip install 'pacbayes_fl[pv]'") from error
    return pvlib

from __future__ import annotations

import pytest

import data_gen
from data_gen import DataGenError


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(DataGenError, match=r"polynomial has no option 'sampels'; nearest is 'samples'"):
        data_gen.generate("polynomial", sampels=3)
    with pytest.raises(DataGenError, match=r"pv-ew has no option 'wether'; nearest is 'weather'"):
        data_gen.generate("pv-ew", wether="typical")
    with pytest.raises(DataGenError, match="no option 'kind'"):
        data_gen.generate("pv-s", kind="ew")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(DataGenError, match="no data set 'pv_ew'; nearest is 'pv-ew'"):
        data_gen.generate("pv_ew")


def test_every_name_works() -> None:
    small = {"clients": 1, "new_clients": 0, "samples": 5}
    for name in data_gen.names():
        options = small | ({} if name == "polynomial" else {"weather": "clearsky"})
        assert data_gen.generate(name, **options).manifest["name"] == name

"""A table as an analyst of PV generation has it: ragged houses, gaps, words, booleans, and clocks that change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

ZONE: Final = "Europe/Zurich"
ROOFS: Final = ("flat", "south", "west")


def houses(count: int = 16, seed: int = 0, rows: tuple[int, int] = (60, 200)) -> pd.DataFrame:
    """Make hourly rows of houses, in local time, in a random order, with NaN, blanks and hours that are missing."""
    random = np.random.default_rng(seed)
    frames = []
    for k in range(count):
        hours = int(random.integers(*rows)) if k else rows[0]
        when = pd.date_range("2024-10-20", periods=hours, freq="h", tz=ZONE)
        when = when[np.sort(random.permutation(hours)[: hours - hours // 20])]
        sun = np.clip(np.sin((np.asarray(when.hour) - 6) * np.pi / 12), 0, None)
        cloud = random.uniform(size=len(when)).round(3)
        frame = pd.DataFrame({"house": f"house_{k:02d}", "timestamp": when.strftime("%Y-%m-%d %H:%M"), "cloud": cloud})
        frame["temp"] = (10 + 3 * random.standard_normal(len(when))).round(2)
        frame["roof"], frame["capacity"], frame["battery"] = ROOFS[k % 3], 3.0 + k % 5, k % 2 == 0
        frame["power"] = (frame.capacity * sun * (1 - 0.7 * cloud)).round(4)
        frame["remark"] = "as delivered"
        frame.loc[random.uniform(size=len(frame)) < 0.03, "cloud"] = np.nan
        frame.loc[random.uniform(size=len(frame)) < 0.02, "power"] = np.nan
        frames.append(frame)
    return pd.concat(frames).sample(frac=1.0, random_state=seed)


def data(path: Path, **more: Any) -> dict[str, Any]:
    """Give the [data] table for it."""
    return {
        "source": str(path),
        "client": "house",
        "target": "power",
        "time": "timestamp",
        "zone": ZONE,
        "features": ["cloud", "temp", "battery", "hour:cyclic", "lag:24h", "lag:24h of cloud", "roll:3h of temp"],
        "categorical": ["roof"],
        "client_features": ["roof", "capacity"],
        "missing": "drop",
        "horizon": "24h",
        "test": {"last": "1 day"},
        "lower_bound": 0.0,
        "duplicate_rows": "allow",
    } | more

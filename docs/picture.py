"""The picture of the README: a client that never trained, alone and with the prior that the federation has learned.

`python -m docs.picture` writes docs/_static/new_client.png; a minute.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import pacbayes_fl as fl

TARGET = Path(__file__).parent / "_static" / "new_client.png"
CLIENT = "new_poly_07"
PANELS = {"vanilla-gp": "alone (vanilla GP)", "pac-pfl": "with the federation's prior (PAC-PFL)"}


def main() -> None:
    """Train both methods, and draw what they say of one client."""
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.1), sharey=True, layout="constrained")
    grid = np.linspace(-1, 1, 81)
    with TemporaryDirectory() as folder:
        asked = Path(folder) / "grid.csv"
        for axis, (method, title) in zip(axes, PANELS.items(), strict=True):
            trained = Path(folder) / method
            result = fl.run(fl.Study.from_toml("polynomial", [f"method.name={method}"]), trained)
            opened = fl.open_run(trained)
            asked.write_text("client,x\n" + "".join(f"{CLIENT},{x}\n" for x in grid), encoding="utf-8")
            table = fl.forecast(opened, asked, quantiles=[0.025, 0.975]).table()
            axis.fill_between(grid, table["q0.025"], table["q0.975"], color="#56b4e9", alpha=0.4, lw=0, label="95 %")
            axis.plot(grid, table["mean"], color="#0072b2", label="mean")
            rows = np.load(trained / "data.npz")
            own = rows["client_name"][rows["client"]] == CLIENT
            for test, style in ((True, {"c": "#999999", "s": 9}), (False, {"c": "black", "s": 26})):
                x, y = (rows[name][own & (rows["test"] == test)] for name in ("x", "y"))
                axis.scatter(x[:, 0], y, label=f"{len(y)} {'test' if test else 'own'} rows", zorder=3, **style)
            row = next(one for one in result.clients if one.name == CLIENT)
            axis.set(title=f"{title}\nRSMSE {row.metrics['rsmse']:.2f}", xlabel="x", xlim=(-1, 1))
    axes[0].set_ylabel("y")
    axes[0].legend(fontsize=8, frameon=False, ncols=2)
    figure.savefig(TARGET, dpi=130)


if __name__ == "__main__":
    main()

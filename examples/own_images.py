"""Your own images: a folder of CLIENT/CLASS/*.png, and calibrated probabilities for each."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

import pacbayes_fl as fl

FOLDER = Path(TemporaryDirectory().name)
STUDY = """
name = "photos"
[data]
source = "photos/"
[data.options]
size = 8            # pixels a side
colour = "grey"
test_share = 0.25
[model]
widths = [16]
[method]
name = "pfedbayes"
zeta = 1.0
steps = 5
[federation]
rounds = 15
"""

random = np.random.default_rng(0)
for client in ("ann", "bob", "carl"):
    for label in ("bright", "dark"):
        place = FOLDER / "photos" / client / label
        place.mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 120, (8, 8)) + (120 if label == "bright" else 0)
            Image.fromarray(pixels.astype("uint8")).save(place / f"{i}.png")

(FOLDER / "study.toml").write_text(STUDY)
result = fl.run(fl.Study.from_toml(FOLDER / "study.toml"))
for client in result.clients:
    print(client.name, {name: round(client.metrics[name], 3) for name in ("pm.accuracy", "pm.ece", "pm.nll")})

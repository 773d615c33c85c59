"""Your own table: a CSV of houses becomes a study, a run and a forecast with quantiles."""

import csv
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pacbayes_fl as fl

FOLDER = Path(TemporaryDirectory().name)
FOLDER.mkdir()
STUDY = """
name = "my-houses"
[data]
source = "houses.csv"              # a path from the study's folder
client = "house"
target = "power"
time = "timestamp"
features = ["cloud", "hour:cyclic", "lag:24h"]
test = { last = "1 days" }
[method]
name = "pac-pfl"
particles = 2
[federation]
rounds = 8
"""


def write(path: Path, days: range) -> None:
    """Write hourly rows of four houses."""
    random.seed(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["house", "timestamp", "cloud", "power"])
        for house in range(4):
            for day in days:
                for hour in range(8, 18):
                    cloud = random.random()
                    power = (1 - 0.7 * cloud) * math.sin(math.pi * (hour - 7) / 11) + 0.05 * random.gauss(0, 1)
                    table.writerow([f"house_{house}", f"2024-06-{day:02d}T{hour:02d}:00", cloud, power + 0.1 * house])


write(FOLDER / "houses.csv", range(1, 6))
(FOLDER / "study.toml").write_text(STUDY)
fl.run(fl.Study.from_toml(FOLDER / "study.toml"), FOLDER / "run")

write(FOLDER / "tomorrow.csv", range(6, 7))  # the lag of 24 hours reaches into the rows of the run
forecast = fl.forecast(fl.open_run(FOLDER / "run"), FOLDER / "tomorrow.csv", quantiles=[0.1, 0.9])
table = forecast.table()
for row in zip(table["house"], table["timestamp"], table["mean"], table["q0.1"], table["q0.9"], strict=True):
    print(*row)

"""A first run: a federation that comes with the package, its table, and one prediction."""

from pacbayes_fl import Study, run

study = Study.from_toml("polynomial", ["federation.rounds=30", "method.particles=2"])
result = run(study)  # a folder as second argument keeps everything; `pacbayes-fl run polynomial` does

for group in ("existing", "new"):  # clients of the group "new" never trained
    scores = result.summary()["groups"][group]["rsmse"]
    low, high = scores["interval"]
    print(f"{group} clients: RSMSE {scores['mean']:.3f} [{low:.3f}, {high:.3f}], median {scores['median']:.3f}")

worst = max(result.clients, key=lambda client: client.metrics["rsmse"])
print("worst client:", worst.name, f"{worst.metrics['rsmse']:.3f}")

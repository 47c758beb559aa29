"""Score embeddings of your own: is their confidence worth anything?

Run ``uv run python examples/score_embeddings.py``. The arrays are made up here; replace them by those of your network.
"""

import bench
import numpy as np

rng = np.random.default_rng(0)
labels = np.repeat(np.arange(40), 10)  # 40 classes of 10 images
noise = rng.uniform(0.05, 0.6, size=len(labels))  # how badly each image is taken
centres = rng.normal(size=(40, 32))
embeddings = centres[labels] / np.sqrt(32) + noise[:, None] * rng.normal(size=(len(labels), 32))
confidence = -noise + 0.1 * rng.normal(size=len(labels))  # knows about the noise, not exactly

scores = bench.score(embeddings, labels, confidence=confidence)
print(scores)

# One value per row, with the same columns as the metrics.csv of `bench run`.
table = scores.table

retrieval = table[table.confidence.isna() | (table.confidence == "")]
print(retrieval[["metric", "value"]].to_string(index=False, float_format="%.3f"))

# The own confidence against the controls: the random order, and the best possible one. Lower AURC is better.
aurc = table[(table.metric == "aurc") & table.confidence.isin(["given", "norm", "random", "oracle"])]
print(aurc[["confidence", "variant", "value"]].to_string(index=False, float_format="%.3f"))

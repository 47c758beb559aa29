"""Records of tests that a page can be made of: a few methods with levels of MAP@R and of the AUROC of confidences."""

from dataclasses import dataclass, field

from bench.protocols.embeddings import row
from bench.protocols.rows import FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES
from bench.store.specs import Cell, Pinned

from tests import records

NOTHING = Pinned()


@dataclass(frozen=True)
class Made:
    """A method with its values by seed; AUROC on test is that of ``auroc``, 0.7 for confidences that it lacks."""

    name: str
    map_at_r: tuple[float, ...]
    own: tuple[float, ...] = ()
    auroc: dict[str, tuple[float, ...]] = field(default_factory=dict)
    dataset: str = "d"
    pinned: Pinned = NOTHING
    cell: str = "m"
    free: tuple[str, ...] = (*FREE_IMAGE_CONFIDENCES, *RETRIEVAL_CONFIDENCES)
    hparams: str = "default"
    trials: int = 0
    base: str = ""
    ensemble: str = ""
    models: int = 0
    reference: bool = False
    splits: tuple[str, ...] = ("test", "val")

    def record(self, seed, version="0.1.0"):
        columns = records.columns(
            dataset=self.dataset, method=self.name, base=self.base, dim=8 * max(self.models, 1), seed=seed,
            ensemble=self.ensemble, pinned=self.pinned, hparams=self.hparams, trials=self.trials,
        )  # fmt: skip
        models = tuple("abcdefgh"[: self.models])
        versions = {"protocol": 1, "engine": f"{self.name} {seed}"}
        own = {"default_confidence": OWN, "probabilistic": True} if self.own else {}
        return records.of_test(
            columns, self._rows(seed), records.spec_of(columns, versions=versions, train=models),
            cell=Cell("reality_check", "d", self.cell), role=records.role(reference=self.reference, **own),
            setting={"params": {"margin": 0.2}}, manifests={"test": "ab"}, finished=1.0 + seed,
            environment=records.ENVIRONMENT.model_copy(update={"bench": version, "torch": "2", "seconds": 1.0}),
        )  # fmt: skip

    def _rows(self, seed):
        yield {"split": "test", **row("map_at_r", self.map_at_r[seed], scorer="cosine")}
        levels = {name: self.auroc.get(name, (0.7,) * len(self.map_at_r))[seed] for name in self.free}
        levels |= dict.fromkeys((OWN, f"{OWN}+margin", f"{OWN}+margin+agreement"), self.own[seed]) if self.own else {}
        for name, level in levels.items():
            known = {"scorer": "cosine", "confidence": name}
            for split in self.splits:
                yield {"split": split, **row("confidence_auroc", level, **known)}
                yield {"split": split, **row("augrc", 0.3 * (1 - level), variant="recall_at_1", **known)}
        for name in ("random", *levels):
            for fraction in (0.0, 0.3, 0.6, 0.9):
                known = {"scorer": "cosine", "confidence": name, "variant": "query_only", "fraction": fraction}
                yield {"split": "test", **row("filter_out_recall_at_1", 0.8 + 0.1 * fraction, **known)}

    def records(self):
        return [self.record(seed) for seed in range(len(self.map_at_r))]


LEADING = Made("leading", (0.80, 0.81, 0.82), (0.90, 0.91, 0.92))
CLOSE = Made("close", (0.79, 0.82, 0.80), (0.60, 0.61, 0.62))
POINT = Made("point", (0.70, 0.71, 0.72))
UNSURE = Made("unsure", (0.30, 0.31, 0.32), (0.68, 0.70, 0.75))
ALONE = Made("alone", (0.9,))

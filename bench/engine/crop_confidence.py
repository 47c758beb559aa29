"""The worth of a model's confidence on centre crops of the validation images, which a study may tune for."""

from __future__ import annotations

import math

from ..datasets.image_set import ImageSet
from ..errors import UnitFailed
from ..methods._model import EmbeddingModel, NonFiniteEmbeddings
from ..methods.scorers.distribution_scorer import DistributionScorer
from ..protocols.confidence import confidence_auroc
from ..protocols.query_metrics import per_query
from ..protocols.ranking import full_depth, rank
from .corrupted_images import CorruptedImages
from .default_confidence import default_confidence
from .networks import check_finite, embed
from .running import PatientScorer, Running


def crop_auroc(
    model: EmbeddingModel,
    images: ImageSet,
    dataset: str,
    severity: tuple[float, float],
    scorer: str,
    device: str,
    running: Running,
) -> float:
    """AUROC of telling right from wrong answers on centre crops by the default confidence of a method, in [0, 1].

    Every image is cropped by a severity of its own and is query and gallery, but never its own neighbour. An answer is
    right if the nearest neighbour has the query's class (Recall@1). If all are right or all wrong, the unit has failed.
    """
    crops = CorruptedImages.of(images, dataset, "crop", severity)
    step = "validation on crops"
    try:
        distribution, confidences = embed(model, crops.evaluation, len(crops), device, running=running, step=step)
        check_finite(distribution, confidences)
        ranked_by = PatientScorer(DistributionScorer(scorer, distribution, model.scorer_options(), device), running)
        depth = full_depth(images.labels)
        correct = per_query(rank(ranked_by, images.labels, depth=depth))["recall_at_1"]
    except (NonFiniteEmbeddings, ValueError) as error:
        raise UnitFailed(f"{step}: {error}") from error
    counted = ~correct.isnan()
    correct, confidence = correct[counted], confidences[default_confidence(model.method, confidences)][counted]
    value = confidence_auroc(confidence, correct)
    if math.isnan(value):
        answers = "right" if len(correct) and float(correct.mean()) == 1 else "wrong"
        raise UnitFailed(f"{step}: all {len(correct)} answers are {answers}, so a confidence has nothing to tell apart")
    return value

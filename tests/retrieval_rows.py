"""Means of retrieval metrics by scores, without a set of embeddings."""

from bench.protocols.query_metrics import mean_of_counted, per_query
from bench.protocols.ranking import full_depth, rank
from bench.protocols.rows import row


def retrieval_rows(scorer, labels, *, ks=(1, 2, 4, 8), ranking=None):
    """Recall@k, MAP@R, R-precision and Precision@1 averaged over queries; every image is query and gallery."""
    ranking = ranking or rank(scorer, labels, depth=full_depth(labels, ks))
    for metric, each in per_query(ranking, ks).items():
        lone = int(each.isnan().sum())
        yield row(metric, mean_of_counted(each), scorer=scorer.name, n_queries=len(each) - lone, n_lone=lone)

"""Exact nearest neighbours from fast products with error bounds; what they cannot prove is computed in float64.

Many scores rise with one inner product and depend otherwise on one number per image: the cosine, distances, likelihood
scores of isotropic distributions. The gallery is sorted by that number and cut into small groups. One matrix product
(float32, or bfloat16 summed in float32 if the processor is faster at that) gives the largest inner product
of a query with each group, the score bounds what the group can hold at best, and only members of the best groups are
scored, in float32. A row counts as found if its neighbours are further apart than all errors
together and everything else is proven to lie below; else its candidates are scored anew in float64, and if that proves
nothing either the row is handed back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

UNIT = 2.0**-24
"""Largest relative error of one rounding to float32."""

_ROUNDED = 1.01 * 2.0**-8
"""Somewhat more than the largest relative error of one rounding to bfloat16."""

_TILE = 1 << 11
"""Images of a tile, more or less: their products with 200 queries fit into the cache of a core."""

_LANES = 64
"""Groups of a tile are a multiple of this number, so that maxima are computed on whole registers."""

_SAMPLE = 1 << 12
"""Images, more or less, whose mean is the centre of a gallery."""

_PAIR_BYTES = 24 << 20
"""Bound on the memory of the pairs that are scored in float64 at a time."""

_WAITING = 1 << 15
"""Candidates, more or less, of queries that are scored in float64 together."""

_LEAST_ROWS = 64
"""Queries of a block if it may grow: products of fewer rows with 500,000 columns take twice the time per row."""

_LARGEST = 4
"""Factor by which such a block may exceed its bound."""


class Terms(Protocol):
    """Interface of the sizes of the terms that make up a score."""

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Size of the terms that make up the scores ``[B, M]`` of queries with gallery images ``[B, M]``, by pair.

        The tolerance within which two scores count as tied is proportional to it, as rounding errors are. Without
        ``items`` it is the largest for any image that may have such a score.
        """


class Bound(Terms, Protocol):
    """Interface of a score that can be bounded from above for a whole group of gallery images.

    An exact search skips the groups whose bound is too low. The score of query i with gallery image j is a function of
    the inner product of two vectors, ``left(i)`` and ``right(j)``, and of at most one further number per image, such as
    its variance. The score never falls as the inner product rises. Images are given by their positions in the set.
    """

    per_image: Tensor | None
    """Number per image on which the score depends besides the inner product, ``[N]`` float64; None if none."""

    def left(self, rows: Tensor) -> Tensor:
        """Vectors of queries ``[B]``, float64 ``[B, K]``; inner products with gallery images' give the scores."""

    def right(self, rows: Tensor) -> Tensor:
        """Vectors of gallery images ``[B]``, float64 ``[B, K]``; inner products with queries' give the scores."""

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores of B queries with M gallery images each, from given inner products, both float64 ``[B, M]``."""

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds ``[B, n]`` of the scores of B queries with n groups at the largest inner products.

        ``low`` and ``high`` are the smallest and largest ``per_image`` in a group and broadcast to ``inner`` ``[B,
        n]``; they are the same tensor if groups are single images.
        """


Tolerance = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function from queries ``[B]``, scores ``[B, M]`` and items, as in :meth:`Bound.scale`, to tolerances ``[B, M]``."""

Pairs = Callable[[Tensor, Tensor], Tensor]
"""Function from queries and gallery images, ``[P]`` each, to the scores of the pairs, float64 ``[P]``."""


@dataclass
class Found:
    """Nearest neighbours of B queries, best first, that are proven to be right in spite of rounding errors.

    For a search of ``depth`` neighbours, they include all gallery images that rank at place ``depth`` or better or are
    tied with that place, and possibly some behind them. ``place`` is the index ``[B]`` of each query among those given;
    items ``[B, M]`` are -1 and scores minus infinity if the gallery has no more images. Errors of scores are too small
    to change the order or the ties up to place ``depth``.
    """

    place: Tensor
    items: Tensor
    scores: Tensor


def product_error(left: Tensor, right: Tensor) -> Tensor:
    """Bound on the rounding error of the inner products ``left @ right.T`` in float32: ``[B]``, one per row of left.

    For vectors l and r of K numbers, rounding the factors to float32 and summing the products in any order, fused or
    not, errs by at most (K + 2) u |l| |r|, with u = 2^-24 the largest relative error of one rounding (Higham 2002,
    Section 3.1). The bound is somewhat larger: it also covers the rounding of the norms and of sums with the bound, and
    values that are too small for float32. The longest of the vectors ``right`` sets it.
    """
    k = left.shape[1]
    longest = float(right.norm(dim=1).max())
    size = left.norm(dim=1)
    error: Tensor = (k + 8) * UNIT * 1.01 * size * longest + 4 * k * 2.0**-126 * (1.0 + size + longest)
    return error


class Gallery:
    """A gallery prepared for a search that bounds the scores of whole groups: images sorted and cut into groups.

    Images are sorted by ``bound.per_image``, so that it differs little in a group. All groups have the same size; empty
    places fill the last ones. The vectors of the images are kept as rows of one matrix, in tiles of ``across`` groups
    whose products with a block of queries fit into the cache of a processor. Member ``s`` of group ``n`` of a tile is
    its row ``s * across + n``, so that the maxima of all groups are computed from contiguous memory. ``rounded`` keeps
    a second copy of the vectors for faster products, centred and then rounded to bfloat16: a centre shifts the products
    of a query by a constant; vectors and products that it makes small lose less. ``kin`` are numbers ``[N]`` of images:
    those with the number of a query are left out for it.
    """

    def __init__(self, bound: Bound, gallery: Tensor, kin: Tensor, size: int, rounded: bool = False) -> None:
        count = len(gallery)
        self.size, self.groups = size, -(-count // size)
        tiles = -(-self.groups * size // _TILE)
        self.across = -(-self.groups // (tiles * _LANES)) * _LANES
        self.tiles = -(-self.groups // self.across)
        self.width = self.across * size
        number = None if bound.per_image is None else bound.per_image[gallery]
        order = torch.arange(count) if number is None else number.argsort(stable=True)
        padded = torch.full((self.tiles * self.width,), -1)
        padded[:count] = gallery[order]
        self.items = padded.view(self.tiles, self.across, size).transpose(1, 2).reshape(-1)
        tile, place = (self.items < 0).view(self.tiles, self.width).nonzero(as_tuple=True)
        partial = tile * self.across + place % self.across < self.groups  # a group that has other members
        self.missing = list(zip(tile[partial].tolist(), place[partial].tolist()))
        of_place = kin[self.items[self.items >= 0]]
        self.columns = (self.items >= 0).nonzero().squeeze(1)[of_place.argsort(stable=True)]
        self.kin, self.sizes = kin, torch.bincount(of_place, minlength=int(kin.max()) + 1)
        self.first = self.sizes.cumsum(0) - self.sizes
        self.per_image = self.low = self.high = None
        if number is not None:
            ascending = number[order]
            self.low = ascending[::size].contiguous()
            self.high = torch.cat([ascending[size - 1 :: size], ascending[-1:]])[: self.groups]
            self.per_image = bound.per_image[self.items.clamp_min(0)] if bound.per_image is not None else None
        width = bound.right(gallery[:1]).shape[1]
        self.rounded = rounded
        self.factors = torch.empty(len(self.items), width, dtype=torch.float32)
        self.coarse = torch.empty_like(self.factors, dtype=torch.bfloat16) if rounded else self.factors
        # Any centre is right; the mean of some images serves as well as that of all.
        some = gallery[:: -(-count // _SAMPLE)]
        self.centre = bound.right(some).mean(0) if rounded else torch.zeros(width, dtype=torch.float64)
        parts = torch.arange(len(self.items)).split(1 << 10)
        # Filled in place: a new small result after each block would keep the block's memory from being reused.
        most = torch.zeros(3, len(parts), dtype=torch.float64)
        for at, part in enumerate(parts):
            right = bound.right(self.items[part].clamp_min(0))
            most[0, at] = most[1, at] = right.norm(dim=1).max()
            here = slice(int(part[0]), int(part[-1]) + 1)
            self.factors[here] = right
            if rounded:
                right = right - self.centre
                self.coarse[here] = right.bfloat16()
                most[1, at] = right.norm(dim=1).max()
                most[2, at] = (right - self.coarse[here]).norm(dim=1).max()
        self.longest, self.longest_centred, self.lost = most.amax(1).tolist()

    def own(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs of one of B queries and the place of an image that is left out for it, ``[P]`` each."""
        kin = self.kin[rows]
        number = self.sizes[kin]
        inside = torch.arange(len(rows)).repeat_interleave(number)
        nth = torch.arange(len(inside)) - (number.cumsum(0) - number)[inside]
        return inside, self.columns[self.first[kin][inside] + nth]


def rounding_pays(queries: int) -> bool:
    """Check if a search is faster with bfloat16 matrix products, summed in float32, than with float32 products.

    It is if the processor supports such products and there are 256 queries or more; for fewer, the copy of the gallery
    in bfloat16 is not worth its cost.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return bool(queries >= 256 and torch.backends.mkldnn.enabled and supported())


def _products(left: Tensor, rows: Tensor, g: Gallery, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """Inner products of queries ``[B, K]`` with all images, and the largest with every group, ``[B, groups]``.

    The products ``[tiles, B, width]`` are those of the images in the order of ``g.items``, minus infinity for places
    without an image and for those that are left out for the query, itself among them.
    """
    count = len(left)
    products = buffer[: g.tiles * count * g.width].view(g.tiles, count, g.width)
    ordered = _ordered(products)
    best = torch.empty(count, g.tiles * g.across, dtype=ordered.dtype)
    for t in range(g.tiles):
        _product(left, g.coarse[t * g.width : (t + 1) * g.width], products[t])
        for at, place in g.missing:
            if at == t:
                products[t, :, place] = -math.inf
        torch.amax(ordered[t].view(count, g.size, g.across), 1, out=best[:, t * g.across : (t + 1) * g.across])
    inside, own = g.own(rows)
    tile, place = own // g.width, own % g.width
    products[tile, inside, place] = -math.inf
    among = place % g.across
    members = among[:, None] + torch.arange(0, g.width, g.across)
    best[inside, tile * g.across + among] = ordered[tile[:, None], inside[:, None], members].amax(1)
    best = best[:, : g.groups]
    return products, best if best.is_floating_point() else best.clamp_min_(0)


def _ordered(products: Tensor) -> Tensor:
    """Numbers to compare products by: those of bfloat16 as integers, whose maxima take a sixth of the time.

    The bits of numbers that are not negative have their order, and those of a negative number are a negative integer. A
    maximum that is negative may thus be wrong, and 0 takes its place: as right a bound, if not as tight. Centred
    products are positive for the neighbours of a query.
    """
    return products.view(torch.int16) if products.dtype == torch.bfloat16 else products


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places ``[B, count]`` of the largest values of each row ``[B, n]``, in any order, and the largest other value.

    NumPy partitions numbers of 32 or 64 bits by vector instructions, in a fraction of the time of a ``topk``.
    """
    last = values.shape[1] - count - 1
    if values.dtype != torch.int16:
        place = torch.from_numpy(values.numpy().argpartition(last, axis=1)[:, last:])
        return place[:, 1:], values.gather(1, place[:, :1])
    # With the place of a value in its lower bits, places need not be carried along.
    both = (values.long() << 32).add_(torch.arange(values.shape[1]))
    both.numpy().partition(last, axis=1)
    return both[:, last + 1 :] & 0xFFFFFFFF, (both[:, last : last + 1] >> 32).short()


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """``left @ right.T``; products of bfloat16 are summed in float32 and then rounded to bfloat16."""
    return torch.mm(left, right.T, out=out)


def _upper(products: Tensor, error: Tensor) -> Tensor:
    """Upper bounds of inner products that were computed with an error, float64, from products ``[B, n]``.

    ``error`` bounds that of each row, ``[B, 1]``, without that of rounding the products to bfloat16, plus what a centre
    has taken from the products of the row.
    """
    wide = products.double()
    if products.dtype == torch.bfloat16:
        # Minus infinity must not become nan, so no absolute value is added.
        wide = torch.maximum(wide * (1.0 + _ROUNDED), wide * (1.0 - _ROUNDED))
    return wide + error


def group_size(count: int, depth: int) -> int:
    """Number of gallery images per group, a power of 2 from 4 to 64, for a search that scores only the best groups.

    The size balances two costs per query: choosing the best groups, and scoring the images in them.
    """
    return 1 << max(2, min(6, round(math.log2(count / (4 * depth)) / 2)))


def usable(bound: Terms | None, queries: Tensor, gallery: Tensor, depth: int) -> TypeGuard[Bound]:
    """Check if :func:`search`, which bounds the scores of groups of gallery images, is exact and saves time.

    It saves time for 128 queries or more and a gallery of at least 64 (depth + 8) images. It is exact if PyTorch
    computes float32 matrix products in full precision and all numbers are finite.
    """
    if bound is None or not hasattr(bound, "upper"):  # sizes of terms only
        return False
    if len(queries) < 128 or len(gallery) < 64 * (depth + 8) or torch.get_float32_matmul_precision() != "highest":
        return False
    finite = bool(torch.isfinite(bound.scale(queries, torch.zeros(len(queries), 1, dtype=torch.float64))).all())
    number: Tensor | None = getattr(bound, "per_image", None)
    return finite and (number is None or bool(torch.isfinite(number[gallery]).all()))


def search(
    bound: Bound,
    queries: Tensor,
    gallery: Tensor,
    kin: Tensor,
    tolerance: Tolerance,
    pairs: Pairs,
    *,
    depth: int,
    block_bytes: int,
) -> Iterator[Found]:
    """Find the exact nearest neighbours of queries, without scoring most of the gallery.

    Upper bounds of the scores of groups of gallery images prove that most images cannot be among the neighbours.
    Queries ``[Q]`` for which this cannot be proven are left out of the result. Images with the number of the query
    among ``kin`` ``[N]`` are no neighbours, which the query itself is one of. Neighbouring
    scores that differ by no more than the larger of their tolerances are tied; ``pairs`` scores what float32 does not
    tell apart. If the memory ``block_bytes`` does not suffice for 64 queries, up to four times as much is used.
    """
    waiting = torch.ones(len(queries), dtype=torch.bool)
    rounded = rounding_pays(len(queries))
    first = depth + (4 + depth // 8 if rounded else 0)
    g = Gallery(bound, gallery, kin, group_size(len(gallery), first), rounded)
    if not max(g.longest, g.longest_centred) < 1e18:
        return
    for wide in (first, min(8 * depth, len(gallery) // 64)):
        left = waiting.nonzero().squeeze(1)
        if not depth <= wide <= len(gallery) // 16 or not len(left):
            return
        # On the way to a bound there are steps in float64; without, values and places of groups and of their members.
        of_chosen = (24 if g.per_image is None else 64) * (g.groups + g.size * (wide + 8))
        gathered = 4 * (wide + 6) * g.factors.shape[1] if g.rounded else 0
        per_row = g.coarse.itemsize * len(g.items) + of_chosen + gathered
        spare = max(block_bytes // 2, block_bytes - g.coarse.nbytes) if g.rounded else block_bytes  # beside a copy
        rows_per_block = max(1, min(_LEAST_ROWS, _LARGEST * block_bytes // per_row), spare // per_row)
        buffer = g.coarse.new_empty(min(rows_per_block, len(left)) * len(g.items))
        unproven: list[tuple[Tensor, ...]] = []
        for place in left.split(rows_per_block):
            found, candidates = _block(bound, g, place, queries[place], tolerance, depth, wide, buffer)
            waiting[found.place] = False
            yield found
            unproven.append(candidates)
            # What float64 has to tell apart is seldom much: one call for many blocks takes a fraction of the time.
            if sum(each[2].numel() for each in unproven) > _WAITING or place[-1] == left[-1]:
                found = _exact(
                    [torch.cat(each) for each in zip(*unproven)], tolerance, pairs, depth, g.factors.shape[1]
                )
                waiting[found.place] = False
                yield found
                unproven.clear()
        del buffer  # before the next one is made
        g.coarse, g.rounded = g.factors, False  # the second time round


def _block(
    bound: Bound, g: Gallery, place: Tensor, rows: Tensor, tolerance: Tolerance, depth: int, wide: int, buffer: Tensor
) -> tuple[Found, tuple[Tensor, ...]]:
    """What products in float32 prove of the queries ``rows``, and what :func:`_exact` needs of the others."""
    factor = bound.left(rows)
    fine = product_error(factor, factor.new_full((1, 1), g.longest))[:, None]
    error, coarse = fine, factor.float()
    if g.rounded:
        # With c = right - centre, left.right = left.centre + left.c, and
        # left.c - round(left).round(c) = (left - round(left)).c + round(left).(c - round(c))
        coarse = factor.bfloat16()
        off = (factor - coarse).norm(dim=1) * g.longest_centred + coarse.double().norm(dim=1) * g.lost
        # Errors in float64, such as that of the shift, are far below the 2 % that are added to the sum's.
        summed = product_error(factor, factor.new_full((1, 1), max(g.longest, g.longest_centred)))[:, None]
        error = 1.02 * summed + 1.0001 * off[:, None] + (factor @ g.centre)[:, None]
    products, best = _products(coarse, rows, g, buffer)
    groups, zero = min(wide + 4, g.groups - 1), error.new_zeros(1)
    # Where the score depends on the product alone, the products are ranked themselves.
    highest = best
    if g.low is not None and g.high is not None:
        best = best.view(products.dtype)
        highest = bound.upper(_upper(best, error), rows, g.low, g.high).masked_fill_(torch.isinf(best), -math.inf)
    chosen, outside = _largest(highest, groups)
    tile, among = chosen // g.across, chosen % g.across
    column, members = tile * g.width + among, torch.arange(0, g.width, g.across)
    # Before a query's row of a tile lie the other queries' products: in memory, a tile has the rows of all.
    at = column + (tile * (len(rows) - 1) + torch.arange(len(rows))[:, None]) * g.width
    inner = _ordered(products).flatten().index_select(0, (at[:, :, None] + members).flatten()).view(len(rows), -1)
    most = min(wide + 6, inner.shape[1] - 1)
    if g.per_image is None:
        chosen, other = _largest(inner, most)
        outside = torch.maximum(outside, other).view(products.dtype)
        cut = bound.upper(_upper(outside, error), rows, zero, zero).squeeze(1)
    else:
        number = g.per_image.index_select(0, (column[:, :, None] + members).flatten()).view_as(inner)
        within = inner.view(products.dtype)
        highest = bound.upper(_upper(within, error), rows, number, number).masked_fill_(torch.isinf(within), -math.inf)
        chosen, other = _largest(highest, most)
        cut = torch.maximum(outside, other).squeeze(1)
    inner = inner.gather(1, chosen).view(products.dtype).double()
    column = column.gather(1, chosen // g.size) + chosen % g.size * g.across
    items = g.items.index_select(0, column.flatten()).view_as(column)
    if g.rounded:
        gathered = g.factors.index_select(0, column.flatten()).view(*column.shape, -1)  # indexing takes twice as long
        again = torch.bmm(gathered, factor.float()[:, :, None]).squeeze(2).double()
        inner, error = torch.where(torch.isinf(inner), inner, again), fine
    absent = torch.isinf(inner)
    inner = inner.masked_fill(absent, 0.0)
    items = items.masked_fill(absent, -1)
    high = bound.value(inner + error, rows, items.clamp_min(0)).masked_fill(absent, -math.inf)
    low = bound.value(inner - error, rows, items.clamp_min(0)).masked_fill(absent, -math.inf)
    order = high.argsort(dim=1, descending=True)
    high, low, items = high.gather(1, order), low.gather(1, order), items.gather(1, order)
    above = torch.maximum(high[:, 1 : depth + 1], cut[:, None])
    allowed = _allowed(tolerance, rows, low[:, : depth + 1], items[:, : depth + 1], cut)
    proven = (low[:, :depth] - above > allowed[:, :depth]).all(1)
    found = Found(place[proven], items[proven, : depth + 1], high[proven, : depth + 1])
    return found, tuple(each[~proven] for each in (place, rows, items, low, high, cut))


def _allowed(tolerance: Tolerance, rows: Tensor, scores: Tensor, items: Tensor, cut: Tensor) -> Tensor:
    """How far each score may lie above the next one, or above the cut, and still be tied with it, ``[B, M]``."""
    own = tolerance(rows, scores, items.clamp_min(0))
    following = torch.cat([own[:, 1:], tolerance(rows, cut[:, None], None)], dim=1)
    return torch.maximum(torch.maximum(own, following), following[:, -1:])


def _exact(known: Sequence[Tensor], tolerance: Tolerance, pairs: Pairs, depth: int, dim: int) -> Found:
    """Score in float64 what float32 does not tell apart; find the rows whose tie group at ``depth`` ends above ``cut``.

    Candidates ``[B, M]`` come by descending upper bound ``high``.
    """
    place, rows, items, low, high, cut = known
    below = torch.cat([high[:, 1:], torch.full_like(cut[:, None], -math.inf)], dim=1)
    apart = low.cummin(1).values - torch.maximum(below, cut[:, None]) > _allowed(tolerance, rows, low, items, cut)
    # Only what is not apart from its neighbours, up to the first gap at `depth` or behind it, changes the ranking.
    matters = apart[:, depth - 1 :].long().cumsum(1) - apart[:, depth - 1 :].long() == 0
    matters = torch.cat([torch.ones_like(apart[:, : depth - 1]), matters], dim=1)
    alone = apart & torch.cat([torch.ones_like(apart[:, :1]), apart[:, :-1]], dim=1)
    row, column = (matters & ~alone & (items >= 0)).nonzero(as_tuple=True)
    scores, least = high.clone(), low.clone()
    for part in torch.arange(len(row)).split(max(1, _PAIR_BYTES // (32 * dim))) if len(row) else ():
        at = row[part], column[part]
        scores[at] = least[at] = pairs(rows[at[0]], items[at])
    scores, order = scores.sort(dim=1, descending=True)
    items, least = items.gather(1, order), least.gather(1, order)
    below = torch.maximum(torch.cat([scores[:, 1:], torch.full_like(cut[:, None], -math.inf)], dim=1), cut[:, None])
    ends = (least.cummin(1).values - below > _allowed(tolerance, rows, least, items, cut))[:, depth - 1 :].any(1)
    return Found(place[ends], items[ends], scores[ends])

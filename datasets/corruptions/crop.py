"""Centre crop, which every image set makes itself from the original image (:meth:`ImageSet.cropped`)."""

from __future__ import annotations

from ._base import Corruption

CORRUPTION = Corruption("crop", "centre crop of side 1 - severity, enlarged to the full size", 0.0, 0.5, None)

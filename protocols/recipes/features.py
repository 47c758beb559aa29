"""Recipe of features that were computed elsewhere: heads as ``folder`` has them on a frozen backbone."""

from __future__ import annotations

from dataclasses import replace

from .folder import RECIPE as FOLDER

RECIPE = replace(FOLDER, backbone="features", augmentation={}, feature_views=1, view={}, freeze_norm="no")

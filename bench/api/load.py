"""``bench.load``: a trained network of a results folder, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ..commands.options import DEFAULT_RESULTS, site_of
from ..errors import UserError, first_line, no_such

if TYPE_CHECKING:
    from ..engine.trained import Network
    from ..site import Site

Place = str | PathLike[str]


def load(
    results: Place = DEFAULT_RESULTS,
    run: Place | None = None,
    *,
    plugins: Sequence[Place] = (),
    data_root: Place | None = None,
    device: str = "auto",
) -> Network:
    """Load a trained network of a results folder, ready to embed images.

    Args:
        results: Results folder. Without ``run``, the folder of one training, ``hf://ORG/NAME`` for one on the Hugging
            Face Hub, which is downloaded, or ``"METHOD/DATASET"`` in ``results/runs``.
        run: Which network: a method and a data set, ``"dul_cls/ndigit"``, for the first seed that was tested; the id of
            a training or test or its start (``train-`` or ``test-`` may precede it); or the folder of a training. A
            test of an ensemble gives all its members together.
        plugins: Python files of the methods and data sets that are not built in, as for ``--plugin``.
        data_root: Folder of downloaded data sets, as for ``--data-root``; only needed for features given as data.
        device: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` if there is a GPU.

    Returns:
        The network. Its ``embed(images)`` gives arrays; ``module`` is the network as a module of PyTorch, ``transform``
        the function of a PIL image to its input.

    Raises:
        UserError: If there is no such network or several; the message has the ids or pairs to choose from.

    Example:
        ::

            net = bench.load("results/runs", "dul_cls/ndigit")
            e = net.embed(["a.png", "b.png"])
            e.mean, e.variance, e.confidence["method"]
            bench.score(e.mean, labels, variance=e.variance)
    """
    from ..engine.trained import open_network, unit_folder
    from ..resources import pick_device
    from ..store.folder import RECORD
    from ..store.hub import SCHEME, fetch

    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device={device!r}: one of auto, cpu, cuda")
    if run is None and "/" in str(results) and not str(results).startswith(SCHEME) and not Path(results).exists():
        results, run = DEFAULT_RESULTS, str(results)  # bench.load("dul_cls/ndigit")
    root = fetch(str(results)) if str(results).startswith(SCHEME) else Path(results)
    if run is None and not (root / RECORD).is_file() and not root.name.startswith(("train-", "test-")):
        raise UserError(f'name a network: bench.load({str(root)!r}, "METHOD/DATASET"), or the id of a training')
    folder = root if run is None else Path(run)
    if run is not None and not (folder.name.startswith(("train-", "test-")) and folder.is_dir()):
        if not root.is_dir():
            raise UserError(f"{root}: {no_such(root, 'folder')}; name the results folder of `bench run`")
        folder = unit_folder(root, str(run))
    folder = folder.resolve()
    site = site_of(
        folder.parents[3] if len(folder.parents) > 3 else root,
        plugin=[Path(name) for name in plugins],
        data_root=None if data_root is None else Path(data_root),
        device=pick_device(device),
    )
    _check_known(folder, site)
    return open_network(folder, site)


def _check_known(folder: Path, site: Site) -> None:
    """Refuse a network whose method or data set is in a plug-in that is not given."""
    from ..store.folder import RECORD
    from ..store.records import DamagedRecord, TestRecord, TrainRecord

    kind = TestRecord if folder.name.startswith("test-") else TrainRecord
    try:
        record = kind.from_json((folder / RECORD).read_bytes())
    except (OSError, DamagedRecord) as error:
        raise UserError(f"{folder} is not finished ({first_line(error)}); `bench status` shows what exists") from None
    base = record.spec.base.method if isinstance(record, TrainRecord) and record.spec.base else ""
    for name in filter(None, (record.cell.method, base)):
        if name not in site.methods.names:
            raise UserError(f"method {name!r} is not built in: give its file, plugins=['{name}.py']")
    if record.cell.dataset not in site.datasets.names and not getattr(record.spec, "photographs", False):
        raise UserError(f"data set {record.cell.dataset!r} is not built in: give its file, plugins=['FILE.py']")

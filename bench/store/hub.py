"""Trained networks in repositories of the Hugging Face Hub, named ``hf://ORG/NAME``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, first_line
from .folder import RECORD, WEIGHTS, checked_training
from .records import TrainRecord

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, HfApi

    Results = Sequence[EvalResult]
    Texts = Mapping[str, str]

SCHEME = "hf://"

TASK = "image-feature-extraction"
"""Task of the Hub that an image embedding is of."""

TAGS = ("metric-learning", "image-retrieval", "uncertainty")
"""Tags of every model."""

_URL = re.compile(rf"{SCHEME}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def fetch(url: str) -> Path:
    """Folder of the training at ``hf://ORG/NAME`` or ``hf://ORG/NAME@REVISION``, downloaded unless it is in the cache.

    Raises:
        UserError: If it cannot be had, is no training, or its weights are not those of its record.
    """
    name, revision = _repository(url)
    try:
        folder = Path(_api().snapshot_download(name, revision=revision, allow_patterns=[RECORD, WEIGHTS]))
    except Exception as error:  # of the network, the account or the service, each with classes of its own
        raise UserError(f"{url}: {first_line(error)}") from error
    checked_training(folder, url)
    return folder


def share(folder: Path, url: str, tags: Sequence[str] = (), results: Results = (), texts: Texts | None = None) -> str:
    """Upload a training in one commit, and return the address of the commit; a missing repository is made, public.

    The card has the ``results`` of tests, and ``tags`` beside its own; ``texts`` are more files by their path.

    Raises:
        UserError: If the training is damaged, or it cannot be uploaded.
    """
    name, revision = _repository(url)
    record = checked_training(folder)
    api = _api()
    from huggingface_hub import CommitOperationAdd

    files = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=folder / path) for path in (RECORD, WEIGHTS)]
    texts = {"README.md": card(record, name, tags, results), **(texts or {})}
    files += [CommitOperationAdd(path_in_repo=path, path_or_fileobj=text.encode()) for path, text in texts.items()]
    message = f"{record.spec.method} on {record.spec.dataset}, training {record.unit}"
    try:
        api.create_repo(name, exist_ok=True)
        done = api.create_commit(name, files, commit_message=message, revision=revision)
    except Exception as error:  # as above
        raise UserError(f"{url}: {first_line(error)}") from error
    return str(done.commit_url)


def card(record: TrainRecord, name: str, tags: Sequence[str], results: Results) -> str:
    """Model card of a training in the repository of a name: Markdown after a header in YAML."""
    from huggingface_hub import ModelCardData

    spec = record.spec
    header = ModelCardData(
        library_name="probembed",
        pipeline_tag=TASK,
        tags=[*TAGS, spec.method, *tags],
        model_name=name,
        eval_results=list(results) or None,
    )
    facts = {
        "method": spec.method,
        "data set": f"{spec.dataset} (its licence may restrict the use of these weights)",
        "backbone": spec.backbone,
        "embedding size": spec.dim,
        "seed": spec.replicate,
        "validation MAP@R": f"{100 * record.val_map_at_r:.1f} %",
        "training": f"{record.unit}, bench {record.environment.bench}",
    }
    lines = "\n".join(f"* **{key}**: {value}" for key, value in facts.items())
    return (
        f"---\n{header.to_yaml()}\n---\n\n# {spec.method} on {spec.dataset}\n\n"
        "An image embedding with a confidence, trained by [probembed](https://pypi.org/project/probembed/).\n\n"
        f"{lines}\n\n"
        "```sh\npip install 'probembed[hub]'\n"
        f"bench embed --run {SCHEME}{name} --images photos --out photos.npz\n```\n\n"
        f"`{RECORD}` has the whole setting, the history and the SHA-256 of `{WEIGHTS}`, which is checked.\n"
    )


def _repository(url: str) -> tuple[str, str | None]:
    found = _URL.fullmatch(url)
    if found is None:
        raise UserError(f"{url} is no address of a repository; write hf://ORG/NAME")
    return found[1], found[2]


def require_hub() -> None:
    """Check that the package for the Hub is here."""
    if find_spec("huggingface_hub") is None:
        raise UserError(f"{SCHEME} needs huggingface_hub: `pip install 'probembed[hub]'`")


def _api() -> HfApi:
    require_hub()
    from huggingface_hub import HfApi

    return HfApi(library_name="probembed")

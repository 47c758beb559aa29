"""Trained networks in repositories of the Hugging Face Hub, named ``hf://ORG/NAME``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, first_line
from ..resources import require_hub
from .folder import RECORD, WEIGHTS, checked_training
from .records import TrainRecord

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Header = Callable[[str, str], str]
"""Function from the name of a repository and that of a method to the header of a model card."""

SCHEME = "hf://"

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


def share(folder: Path, url: str, header: Header, texts: Mapping[str, str]) -> str:
    """Upload a training in one commit, and return the address of the commit; a missing repository is made, public.

    ``texts`` are more files by their path in the repository.

    Raises:
        UserError: If the training is damaged, or it cannot be uploaded.
    """
    name, revision = _repository(url)
    record = checked_training(folder)
    api = _api()
    from huggingface_hub import CommitOperationAdd

    files = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=folder / path) for path in (RECORD, WEIGHTS)]
    texts = {"README.md": card(record, name, header(name, record.spec.method)), **texts}
    files += [CommitOperationAdd(path_in_repo=path, path_or_fileobj=text.encode()) for path, text in texts.items()]
    message = f"{record.spec.method} on {record.spec.dataset}, training {record.unit}"
    try:
        api.create_repo(name, exist_ok=True)
        done = api.create_commit(name, files, commit_message=message, revision=revision)
    except Exception as error:  # as above
        raise UserError(f"{url}: {first_line(error)}") from error
    return str(done.commit_url)


def card(record: TrainRecord, name: str, header: str) -> str:
    """Model card of a training in the repository of a name: Markdown after a header in YAML."""
    spec = record.spec
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
        f"{header}\n# {spec.method} on {spec.dataset}\n\n"
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


def _api() -> HfApi:
    require_hub()
    from huggingface_hub import HfApi

    return HfApi(library_name="probembed")

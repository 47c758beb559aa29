"""The marker of a results folder, ``store.json``: its schema and the versions of its protocols."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ..seeds import content_id
from .files import DamagedFile
from .strict_json import read_json

MARKER = "store.json"


class Marker(BaseModel):
    """Content of the marker ``store.json``, which has the schema of the records and the versions of the protocols."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: int
    protocols: dict[str, int]

    def with_protocol(self, name: str, version: int) -> Marker:
        """A copy of the marker with one more protocol and its version."""
        return Marker(schema_version=self.schema_version, protocols={**self.protocols, name: version})

    def to_json(self) -> bytes:
        """The marker as the content of its file."""
        held = {"schema": self.schema_version, "protocols": self.protocols}
        text = json.dumps({**held, "checksum": content_id(held)}, indent=1, sort_keys=True)
        return f"{text}\n".encode()


def read_marker(path: Path) -> Marker | None:
    """Read the marker of a results folder from its file, which must be whole; None if there is no file."""
    try:
        held = read_json(path.read_bytes())
        checksum = held.pop("checksum", None)  # earlier versions wrote none
        if checksum is not None and checksum != content_id(held):
            raise ValueError
        return Marker.model_validate({"schema_version": held.pop("schema"), **held})
    except FileNotFoundError:
        return None
    except (ValueError, ValidationError, RecursionError, AttributeError, KeyError, TypeError, IsADirectoryError):
        raise DamagedFile(f"{path} is damaged") from None

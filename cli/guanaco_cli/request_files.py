"""Requests that are written down in YAML or JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from guanaco.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import BaseModel

    Request = TypeVar("Request", bound=BaseModel)

RequestFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML or JSON.", exists=True, dir_okay=False)
]


def read_request(file: Path, kind: type[Request]) -> Request:
    """What the file asks for; raises InvalidInput, with a sentence."""
    import yaml
    from pydantic import ValidationError

    from guanaco.errors.validation import one_sentence

    try:
        return kind.model_validate(yaml.safe_load(file.read_text()))
    except ValidationError as error:
        raise InvalidInput(f"{file}: {one_sentence(error)}") from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise InvalidInput(f"{file} is neither YAML nor JSON.") from None

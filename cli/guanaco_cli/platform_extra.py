"""What to say when the platform's packages are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from guanaco.errors import GuanacoError


@contextmanager
def needs_platform() -> Iterator[None]:
    """Within, imports of the platform; a GuanacoError that names the extra when it is missing."""
    try:
        yield
    except ImportError as error:
        raise GuanacoError(
            f"The platform is not installed here ({error}).", hint="pip install 'guanaco[server]'"
        ) from error

"""The errors that reject a request: invalid input, no permission, not found, or a conflict."""

from guanaco.errors.requests.access import *  # noqa: F403
from guanaco.errors.requests.conflicts import *  # noqa: F403
from guanaco.errors.requests.invalid_input import *  # noqa: F403
from guanaco.errors.requests.not_found import *  # noqa: F403

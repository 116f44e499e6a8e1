"""Reasons why an artifact cannot be loaded or used; each message is one sentence, and none has a URL's secret in it.

ArtifactError
├── DamagedArtifactError       its bytes are not those that were written
└── UnreachableArtifactError   it is not there, or its store does not let us have it

AdapterUnusable                its bytes are right, but the engine cannot use it as an adapter
"""

from __future__ import annotations


class ArtifactError(RuntimeError):
    """The artifact cannot be loaded, and nothing else is loaded in its place."""


class DamagedArtifactError(ArtifactError):
    """The artifact's bytes are not those that were written."""


class UnreachableArtifactError(ArtifactError):
    """The artifact is not there, or its store does not let us have it."""


class AdapterUnusable(Exception):  # answered with 409: what was held before is held still
    """The adapter cannot be taken."""

"""Ships ``migrations/`` and the runbooks inside the server package.

Only into a real wheel: an editable install reads the folder of the checkout, and a copy would go stale.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MigrationsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["migrations"] = "guanaco_server/migrations"
            build_data["force_include"]["docs/runbooks.md"] = "guanaco_server/web/runbooks.md"

"""Every setting of the platform in one frozen object, which the entrance builds and passes on."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, SecretStr

from guanaco_server.settings.alerts import AlertSettings
from guanaco_server.settings.chat import CharacterSettings, ChatSettings, RewardSettings
from guanaco_server.settings.gpus import GpuSettings
from guanaco_server.settings.kubernetes import KubernetesSettings
from guanaco_server.settings.process import ProcessSettings
from guanaco_server.settings.scaling import ScalingSettings
from guanaco_server.settings.serving import CheckSettings, EngineSettings
from guanaco_server.settings.storage import StorageSettings
from guanaco_server.settings.url_passwords import passwords_of
from guanaco_server.settings.users import (
    CorsSettings,
    FeedbackSettings,
    NotificationSettings,
    WebSettings,
)

REMEMBERED_S = 3600.0
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


class Settings(
    ProcessSettings,
    StorageSettings,
    EngineSettings,
    KubernetesSettings,
    CheckSettings,
    GpuSettings,
    ScalingSettings,
    AlertSettings,
    ChatSettings,
    CharacterSettings,
    RewardSettings,
    FeedbackSettings,
    NotificationSettings,
    WebSettings,
    CorsSettings,
):
    """All parts together. A room takes only the part that it needs.

    Building one reads neither the environment nor a file: `load_settings` in sources.py does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def secrets(self) -> list[str]:
        """Every secret's value, and every password in a URL, for code that must not write one down."""
        values = [getattr(self, name) for name in type(self).model_fields]
        secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        texts = [*secrets, *(value for value in values if isinstance(value, str))]
        return [*secrets, *(password for text in texts for password in passwords_of(text))]

    @property
    def artifacts_path(self) -> Path:
        return self.artifacts_dir or self.data_dir / "artifacts"

    @property
    def backups_path(self) -> Path:
        return self.backup_dir or self.data_dir / "backups"

    @property
    def engine_cache_path(self) -> Path:
        return self.engine_cache_dir or self.data_dir / "engine-cache"

    @property
    def hot_engine_limit(self) -> int:
        """Return how many model servers without users may stay."""
        if self.hot_engines is not None:
            return self.hot_engines
        return int(self.cluster == "local" and not self._has_gpus)

    @property
    def serves_adapters(self) -> bool:
        """Return whether LoRA adapters are served on their base's model server, where that can take them."""
        if self.lora_serving is not None:
            return self.lora_serving == "adapter"
        return self.cluster == "local" and self.engine_command is None

    @property
    def starts_bases_for_adapters(self) -> bool:
        """Return whether a model server that adapters could be added to takes them from its start. On a GPU they take memory that is not measured."""
        return self.serves_adapters and self.cluster == "local" and not self._has_gpus

    @property
    def _has_gpus(self) -> bool:
        return bool(self.gpu_types) or any(device.exists() for device in GPU_DEVICES)

    @property
    def hot_engine_memory_s(self) -> float:
        """Return for how long requests for model servers are remembered."""
        return self.hot_engine_s or REMEMBERED_S

"""The platform's settings: one frozen object, its parts, and the way they are read.

``settings.py`` puts the parts together, ``sources.py`` reads the environment and the TOML file strictly,
``report.py`` says where each value comes from. Every other module is one part. docs/settings.md lists them all.
"""

from guanaco_server.settings.chat import ChatSettings as ChatSettings
from guanaco_server.settings.chat import RewardSettings as RewardSettings
from guanaco_server.settings.gpus import GpuSettings as GpuSettings
from guanaco_server.settings.kubernetes import KubernetesSettings as KubernetesSettings
from guanaco_server.settings.process import ProcessSettings as ProcessSettings
from guanaco_server.settings.scaling import ScalingSettings as ScalingSettings
from guanaco_server.settings.serving import CheckSettings as CheckSettings
from guanaco_server.settings.serving import EngineSettings as EngineSettings
from guanaco_server.settings.settings import Settings as Settings
from guanaco_server.settings.sources import LoadedSettings as LoadedSettings
from guanaco_server.settings.sources import load_settings as load_settings
from guanaco_server.settings.storage import StorageSettings as StorageSettings
from guanaco_server.settings.users import FeedbackSettings as FeedbackSettings
from guanaco_server.settings.users import NotificationSettings as NotificationSettings
from guanaco_server.settings.users import WebSettings as WebSettings

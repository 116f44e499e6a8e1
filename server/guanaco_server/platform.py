"""The composition root: the one file that knows every concrete class.

    settings → ports' adapters → services → pipeline and background loops

``Platform`` starts and stops them in the right order; ``app.py`` puts HTTP in front.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from guanaco.errors import ModelServerDied
from guanaco_server.accounts.service import AccountService
from guanaco_server.artifacts.checks import CheckLimits
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.artifacts.service import ArtifactService, SerializerOptions
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.chat.conversations import ConversationService
from guanaco_server.clock import SystemClock
from guanaco_server.data_dir import DataDir
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.deployments.clusters.local import LocalCluster
from guanaco_server.deployments.reconciler import Reconciler
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.specs import EngineOptions
from guanaco_server.deployments.vllm_server import VllmServer
from guanaco_server.prompts.tokenizers import TokenizerCache
from guanaco_server.settings import Settings
from guanaco_server.stress.load import LoadProfile
from guanaco_server.stress.service import StressService
from guanaco_server.stress.verdict import Thresholds
from guanaco_server.submissions.changes import StatusChanges
from guanaco_server.submissions.events import EventFeed
from guanaco_server.submissions.pipeline.journal import Journal
from guanaco_server.submissions.pipeline.readiness import ServerStart, evidence
from guanaco_server.submissions.pipeline.runner import StageRunner
from guanaco_server.submissions.pipeline.stages import StageParts
from guanaco_server.submissions.pipeline.workflow import Pipeline
from guanaco_server.submissions.service import SubmissionService

ENGINE_MODULE = "guanaco_server.engine"

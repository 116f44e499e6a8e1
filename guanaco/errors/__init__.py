"""Every error that a person or a program may see, in one tree.

``from guanaco.errors import X`` works for every class below. ``requests/`` holds the errors that reject a request,
``platform.py`` those that the platform causes, ``stages.py`` the failures of submissions, and ``tree.py`` the root.

GuanacoError
├── InvalidInput                 a value is out of range, a field is missing or unknown
│   ├── InvalidCard              what was sent is no Character Card that can be stored
│   ├── InvalidFormatter         a prompt template that may not be filled
│   ├── ConsentRequired          the user has not agreed to talk to an experimental model
│   ├── PersonaTooLong           leaves no room for a message in any model that takes conversations
│   ├── MessageTooLong           does not fit into max_input_tokens together with the persona
│   ├── ModelRefused             the model server works, and refuses the request
│   ├── NoSuchGpu                the platform, or its table, has no GPU of that type
│   ├── RewardUnusable           the submission named as reward model cannot be one for this developer
│   ├── PayloadTooLarge          the request's body is over the limit
│   ├── HeaderTooLarge           the request's header is over the limit
│   ├── MalformedRequest         what came is not an HTTP request
│   └── MethodNotAllowed         another HTTP method is meant for that path
├── RequestTimedOut              the request's header or body did not come in time
├── Unauthenticated              no key, or one that is wrong or revoked
├── Forbidden                    a valid key whose role does not allow this
├── TooManyAttempts              the same was tried too often in a short time
├── TooManySubmissions           the developer has submitted as often within an hour as they may
├── NotFound                     it does not exist, or the caller may not see it
│   ├── SubmissionNotFound, ConversationNotFound, MessageNotFound, BattleNotFound, KeyNotFound, ArtifactNotFound, CompetitionNotFound,
│   │   WebhookNotFound, FeedbackNotFound, NotRated, AccountNotFound, ExperimentNotFound, FlagNotFound
│   ├── ReportNotFound           the submission has no stress report yet
│   ├── SweepNotFound            the developer has no sweep of that id
│   ├── CharacterNotFound        there is no such character, or its owner keeps it private
│   ├── PromptNotFound           there is no such stored prompt, version or label
│   ├── CardNotFound             the submission has no model card
│   └── SeasonNotFound           the competition has no final ranking yet
├── Conflict                     the present state does not allow it
│   ├── IllegalTransition        the submission's status does not allow this
│   ├── RedeployInProgress       the submission's last redeploy has not ended yet
│   ├── NothingToRollBack        no redeploy has replaced a version of the submission
│   ├── IdempotencyConflict      the same Idempotency-Key with another body
│   ├── RequestInProgress        the first request with this Idempotency-Key is still being answered
│   ├── ConversationBusy         a reply is still being written
│   ├── BattlesOff               the competition has no battles, or the conversation is part of an experiment
│   ├── AlreadyRated, NothingToRegenerate, NothingToContinue, NothingToRate
│   ├── ExternalIdTaken          the app's own id of a conversation is another user's
│   ├── RatingSettled            it is too old, was changed too often, or its competition is frozen
│   ├── QuotaExceeded            the developer has as many submissions, or bytes, as they may have
│   ├── RewardInUse              live submissions are served with this reward model
│   ├── ExperimentConflict       its name is taken, it has run, or another has its users
│   ├── NewerVersionNeeded       a newer version has stored what this server does not understand
│   ├── CompetitionClosed        its window has not begun, or is over, or it is frozen
│   ├── AmbiguousUser            users of several backends have that id
│   ├── AmbiguousAlias           submissions of several developers have that alias
│   ├── ModelNotLive             the submission that was chosen takes no new conversations
│   ├── CannotDelete             the submission has not failed, or was live
│   ├── LastAdminKey             it is the only admin key that still works
│   └── AccountRoleConflict      the account exists with another role
├── Unavailable                  a retry later can help
│   ├── NoModelAvailable         no submission can take a conversation now
│   ├── ModelUnavailable         this submission's model server does not answer
│   ├── ModelWaking              it was scaled to zero and is starting again
│   ├── ModelTimedOut            it answered too late
│   ├── Overloaded               every model server of the submission, or its template, is at its limit
│   ├── TooManyConnections       to this server, or from one address
│   ├── DatabaseUnavailable      the database does not answer; nothing was changed
│   ├── ArtifactLost             the store no longer has what the submission is served from
│   ├── PromptFailed             the submission's own template cannot render this conversation
│   ├── ServerUnreachable        (client) no Guanaco at that URL
│   ├── SchemaNotReady           nobody has migrated the database
│   ├── WorkerGivenUp            this worker was silent for too long: another has its work
│   └── DataDirInUse             another platform runs on the same data folder
├── TooManyRatings               a user rates faster than a person does
├── SubmissionFailure            a pipeline stage failed; says who can do something about it
│   ├── HubUnreachable           (chance) the Hugging Face Hub did not answer
│   ├── StoreUnreachable         (chance) the artifact store did not answer
│   ├── ClusterUnreachable       (chance) the Kubernetes API did not answer
│   ├── ClusterRefused           (platform) it has no room, no such image, or does not allow it
│   ├── RepoNotFound, RepoGated, HubTokenGone, HubTokenRefused, StorageQuotaExceeded, RevisionNotFound, PickleWeights, MissingFile, CorruptWeights,
│   │   CorruptConfig, RemoteCode, UnsupportedArchitecture, UnsupportedAdapter, UnsupportedTokenizer,
│   │   BadChatTemplate, BadPrompt, ModelTooLarge, ContextTooLong          (developer)
│   ├── DiskFull, SerializerDied, EngineMissing                            (platform)
│   ├── NoRecipe                 (platform) no GPUs of the platform can serve the model as it is wanted
│   ├── BudgetExceeded           (developer) the developer's GPUs have cost the month's budget
│   ├── ModelServerDied          (developer) it could not start or kept dying
│   ├── ModelServerTooSlow       (developer) not ready within the time allowed
│   ├── ModelServerLost          (platform) it went away while it was checked
│   ├── ContentCheckFailed       (developer) it serves, but what it says cannot be used
│   ├── QuantizationUnsupported  (developer) the model cannot be quantized so when it is served
│   ├── QuantizationTooLossy     (developer) quantized, it predicts text worse; both figures are in it
│   ├── StressCheckFailed        (developer) too slow or too many errors; the figures are in it
│   ├── CanaryWorse              (developer) a canary fails, waits or displeases more than the version that serves
│   └── StageFault               (platform) an unforeseen error; the log has its id
├── InvalidSettings              the platform cannot start as configured
├── BackupFailed                 a backup could not be made, tried out or restored
├── BackupDamaged                a backup is not whole, was changed, or is of a newer version
├── ExportUnsupported            this server cannot write that format
├── LibraryMissing               (client) an optional package is not installed
└── InternalFault                an unforeseen error, logged under an id

The JSON form is ``{"error": code, "detail": sentence, "hint": next step or null}``.
"""

from __future__ import annotations

# Each class in these modules is public; tests/unit/test_rules.py checks that the tree above names it.
from guanaco.errors.platform import *  # noqa: F403
from guanaco.errors.requests import *  # noqa: F403
from guanaco.errors.stages import *  # noqa: F403
from guanaco.errors.tree import Blame as Blame
from guanaco.errors.tree import GuanacoError as GuanacoError
from guanaco.errors.tree import error_classes as error_classes

"""The first thing to do about each alert, in a sentence; docs/runbooks.md has the rest, and a test compares the names."""

from __future__ import annotations

from collections.abc import Mapping

from guanaco.alerts import AlertName

ADVICE: Mapping[AlertName, str] = {
    AlertName.DAILY_SPEND: "`guanaco costs` shows which submissions cost most; tear down what nobody needs, or raise `daily_budget`.",
    AlertName.SPEND_UNUSUAL: "Compare the GPUs held on the costs page with last week's: look for replicas, peak hours or submissions that were not there.",
    AlertName.ERRORS_UNUSUAL: "`guanaco slo` shows how long; the dashboard shows which outcome and which submission. `guanaco deactivate ID` takes a single bad one away.",
    AlertName.FIRST_TOKEN_UNUSUAL: "Compare requests in flight with the model servers that are ready; give the busy submissions more replicas.",
    AlertName.CACHE_HITS_UNUSUAL: "Look for replicas that were restarted or added, for a new prompt that begins differently for each user, and for a full KV cache.",
    AlertName.BUDGET_BURNS_FAST: "Users see errors now: look at the database and the model servers, and undo the last roll-out.",
    AlertName.NO_WORKER: "Start a worker (`guanaco up --role worker`), or read the log of the one that ended; on Kubernetes, `kubectl -n guanaco logs guanaco-worker-0 --previous`.",
    AlertName.BUDGET_BURNS_SLOWLY: "Find the submission or the outcome that fails on the dashboard, and put it right today.",
}

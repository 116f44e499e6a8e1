"""Takes over the workflows of an executor that died.

DBOS resumes by itself what its own executor left; for another's there is the private
``DBOS._recover_pending_workflows`` and the public ``resume_workflows``, which this uses. The public one does not
ask who runs a workflow now, so its caller makes sure that one survivor alone calls it, for an executor that
was given up (workers/service.py). Should that one live after all, DBOS refuses to record its steps from then on.
"""

from __future__ import annotations

import asyncio

from dbos import DBOS


async def resume_workflows_of(executor_id: str, queue: str) -> int:
    """Put an executor's unfinished workflows back into the queue, each at the step it was in; how many there were."""
    return await asyncio.to_thread(_resume, executor_id, queue)


def _resume(executor_id: str, queue: str) -> int:
    left = DBOS.list_workflows(
        executor_id=executor_id, status="PENDING", load_input=False, load_output=False
    )
    if left:
        DBOS.resume_workflows([workflow.workflow_id for workflow in left], queue_name=queue)
    return len(left)

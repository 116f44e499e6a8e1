"""A process is known again by when the kernel started it, whatever the wall clock says since."""

from __future__ import annotations

import os
from dataclasses import replace

from guanaco_server.clusters.local.processes import GroupLeader


def test_process_is_recognized_after_the_clock_was_set() -> None:
    ours = GroupLeader.of(os.getpid())
    assert ours.is_running()
    assert replace(ours, create_time=ours.create_time - 3_600).is_running()
    assert not replace(ours, ticks=(ours.ticks or 0) + 1).is_running()
    assert not replace(ours, boot_id="another boot").is_running()


def test_record_of_the_previous_version_is_recognized_by_wall_clock() -> None:
    before = replace(GroupLeader.of(os.getpid()), boot_id=None, ticks=None)
    assert before.is_running()
    assert not replace(before, create_time=before.create_time - 3_600).is_running()

"""Memory for tensors on their way, used again as soon as the consumer has let go of it.

Fresh memory is the dear part of reading: the kernel zeroes each page at its first touch, at 0.75 GB/s where a
used buffer takes 2.8. A consumer may keep what it was given for as long as it likes; a buffer that is still
exported (to a memoryview, or to a torch tensor over one) is not given out a second time.
"""

from __future__ import annotations

import mmap

GRAIN_BYTES = 2 * 1024**2  # one huge page


class BufferPool:
    """Buffers of one thread's choosing. Keeps at most ``idle_bytes`` that nobody uses."""

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._buffers: list[mmap.mmap] = []

    def take(self, size_bytes: int) -> mmap.mmap:
        """A buffer of at least that size; its bytes are anything."""
        idle = [buffer for buffer in self._buffers if _is_let_go(buffer)]
        fitting = [b for b in idle if size_bytes <= len(b) <= 2 * size_bytes + GRAIN_BYTES]
        if fitting:
            chosen = min(fitting, key=len)
            self._buffers.remove(chosen)
        else:
            self._trim(idle, self._idle_bytes - size_bytes)
            chosen = _fresh(size_bytes)
        self._buffers.append(chosen)  # the latest used is last
        return chosen

    def _trim(self, idle: list[mmap.mmap], kept_bytes: int) -> None:
        """Give the longest unused back to the kernel."""
        total = sum(len(buffer) for buffer in idle)
        for buffer in idle:
            if total <= kept_bytes:
                return
            total -= len(buffer)
            self._buffers.remove(buffer)
            buffer.close()


def _fresh(size_bytes: int) -> mmap.mmap:
    rounded = -(-max(size_bytes, 1) // GRAIN_BYTES) * GRAIN_BYTES
    buffer = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def _is_let_go(buffer: mmap.mmap) -> bool:
    """A mapping refuses to be resized, also to the size it has, while it is exported."""
    try:
        buffer.resize(len(buffer))
    except BufferError:
        return False
    return True

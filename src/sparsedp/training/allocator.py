"""What the C library does with the memory that a step gives back."""

from __future__ import annotations

import numpy as np

LESSON = 31 << 20
"""Bytes. glibc learns from blocks of up to 32 MB."""


def keep_freed_memory() -> None:
    """Let malloc keep the pages that a step frees for the next step, up to 62 MB of them.

    A private step holds inputs and output gradients of all layers until its end and then frees them at once.
    glibc hands the top of its heap back to the kernel and gets it again page by page: 6,000 page faults, a
    tenth of the step, with four layers of 598 and a batch of 2048. It does so no longer for less than twice the
    largest block that it mapped apart and saw freed (mallopt(3), M_MMAP_THRESHOLD), so it is shown one. Nothing
    is written there: it takes no memory, and other allocators let it pass.
    """
    np.empty(LESSON, dtype=np.uint8)

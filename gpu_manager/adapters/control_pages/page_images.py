"""Cached readings of a usage page, so that an unchanged page is not decoded again."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.ports.control_pages import TenantUse
from vcuda.page import usage as usage_page

USAGE_MODE: Final = 0o666  # a container may run as any user
USAGE_FILE: Final = stat.S_IFREG | USAGE_MODE


@dataclass(frozen=True, slots=True)
class PageImage:
    """The last valid image of a usage page (the used part of its head, its slots), and its content."""

    head: bytes
    slots: bytes
    usage: usage_page.Usage

    def is_of(self, page: int) -> bool:
        """True if the page still has this image: of the 12 KiB before its slots, a third is read."""
        return (
            os.pread(page, len(self.head), 0) == self.head
            and os.pread(page, len(self.slots), usage_page.USAGE_HEAD_SIZE) == self.slots
        )


@dataclass(frozen=True, slots=True)
class ToldUsage:
    """The usage last returned for a page, and its source: descriptor, image, the slots in use and those whose
    process lived.
    """

    page: int
    reading: PageImage
    slots: tuple[int, ...]
    alive: tuple[int, ...]
    uses: tuple[TenantUse, ...]

    def holds(self) -> bool:
        """True if the page is as it was. Idle containers are the rule: six system calls for each."""
        page, reading = self.page, self.reading
        try:
            status = os.fstat(page)
            return (
                status.st_size == usage_page.USAGE_SIZE
                and status.st_mode == USAGE_FILE
                and status.st_nlink > 0
                and status.st_blocks * 512 <= usage_page.USAGE_SIZE
                and status.st_uid == os.geteuid()
                and not files.has_attributes(page)
                and os.pread(page, len(reading.head), 0) == reading.head
                and os.pread(page, len(reading.slots), usage_page.USAGE_HEAD_SIZE) == reading.slots
                and self.alive == tuple(files.held(page, self.slots))
            )
        except (OSError, files.TooManyLocks):
            return False  # whoever looks closer says why

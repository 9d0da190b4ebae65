"""What has to be set before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def prepare_environment() -> None:
    """Set what torch's OpenMP reads when it is imported; what the user has set stays.

    Threads that spin between parallel regions take the cores from the event loop and from clients: on two
    shared cores decode takes twice as long with spinning as with waiting threads. And OpenMP counts the cores
    of the machine, not the share of them that a container may use.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    limit = cpu_limit(CGROUP_CPU_LIMIT)
    if limit is not None and limit < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(limit))


def cpu_limit(cgroup_file: Path) -> int | None:
    """CPUs that a container may use, at least 1; None without a limit. The file is cgroup v2's `cpu.max`."""
    try:
        quota, period = cgroup_file.read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no cgroup v2, or a quota of "max"
        return None

"""Finds the control group of version 2 under which a worker may make groups of its own, if there is one.

Delegated is what systemd marks so (``Delegate=yes``), what a user owns, and the root that a container sees of
its own. The machine's own root and directories of systemd are left alone, although root could write there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: Controllers that limits need.
CONTROLLERS = ("cpu", "memory")
#: Group of the worker's own processes: one that passes controllers on to its children may hold none itself.
LEAF = "ostinato-worker"
_XATTRS = ("trusted.delegate", "user.delegate")


class CgroupUnavailable(Exception):
    """Why there is no control group to be had."""


def find_delegated_cgroup(proc: Path = Path("/proc/self")) -> Path:
    """Directory under which the worker may make groups. Raises ``CgroupUnavailable`` and ``OSError``."""
    mount_root, mount_point = _cgroup_mount((proc / "mountinfo").read_text())
    own = _own_group((proc / "cgroup").read_text())
    if mount_root != "/" and own != mount_root and not own.startswith(f"{mount_root}/"):
        raise CgroupUnavailable(f"its control group {own} is not below what is mounted at {mount_point}")
    below = own if mount_root == "/" else own.removeprefix(mount_root)
    directory = mount_point / below.strip("/")
    if directory.name == LEAF:
        # Another process of the same place has moved everybody here.
        directory = directory.parent
    is_visible_root = directory == mount_point
    if not (directory / "cgroup.type").exists() and is_visible_root:
        raise CgroupUnavailable("it runs in the machine's own root control group, which is not delegated")
    available = (directory / "cgroup.controllers").read_text().split()
    for name in CONTROLLERS:
        if name not in available:
            raise CgroupUnavailable(f"its control group {directory} has no {name} controller")
    for path in (directory, directory / "cgroup.procs", directory / "cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise CgroupUnavailable(f"{path} is not writable for it")
    if not is_visible_root and not _is_delegated(directory):
        raise CgroupUnavailable(f"{directory} is not delegated to it (systemd: Delegate=yes)")
    return directory


def _cgroup_mount(mountinfo: str) -> tuple[str, Path]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            fields = before.split(" ")
            return fields[3], Path(fields[4])
    raise CgroupUnavailable("control groups of version 2 are not mounted")


def _own_group(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise CgroupUnavailable("it is in no control group of version 2")


def _is_delegated(directory: Path) -> bool:
    owner = directory.stat().st_uid
    if owner != 0:
        return owner == os.geteuid()
    for name in _XATTRS:
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                raise
    return False

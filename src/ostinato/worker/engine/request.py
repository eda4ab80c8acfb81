"""What an engine is asked for: the body of a new container, its labels, its image, its payload; pure."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from ostinato.control.container_checks import OWN_FOLDER
from ostinato.core.definition import ContainerSpec, Mount
from ostinato.wire.messages import Assignment, TaskSpec
from ostinato.worker.workspace import PAYLOAD_FILE, context_variables

LABEL_PREFIX = "ostinato."
#: The process of a worker that has made the container: by it the reaper finds what a dead one has left.
WORKER_ID_LABEL = f"{LABEL_PREFIX}worker-id"

_PAYLOAD_PATH = f"{OWN_FOLDER}/{PAYLOAD_FILE}"


def container_name(attempt_id: str) -> str:
    """Name of an attempt's container, known before there is one: so it can be ended whoever knows of it."""
    return f"ostinato-{attempt_id}"


def split_image(image: str) -> tuple[str, str]:
    """Name of an image, and its digest or tag: a fetch without one would fetch every tag there is."""
    name, _, digest = image.partition("@")
    tail = name.rpartition("/")[2]
    _, colon, tag = tail.partition(":")
    if colon:
        name = name[: -len(tag) - 1]
    return name, digest or tag or "latest"


def labels_of(assignment: Assignment, *, worker_id: str, worker_name: str) -> dict[str, str]:
    """By what people and the reaper find the container: the fencing token, and who has made it."""
    said = {
        "namespace": assignment.ref.namespace,
        "task": assignment.ref.name,
        "instance-id": assignment.instance_id,
        "attempt": str(assignment.attempt),
        "attempt-id": assignment.attempt_id,
        "worker-id": worker_id,
        "worker-name": worker_name,
    }
    return {f"{LABEL_PREFIX}{name}": value for name, value in said.items()}


def create_body(
    assignment: Assignment, spec: TaskSpec, *, deadline_us: int | None, labels: dict[str, str]
) -> dict[str, Any]:
    """Body of ``POST /containers/create``."""
    container = spec.executor
    assert isinstance(container, ContainerSpec)
    variables = container.env | context_variables(
        assignment, scratch=OWN_FOLDER, payload_file=_PAYLOAD_PATH, deadline_us=deadline_us
    )
    body: dict[str, Any] = {
        "Image": container.image,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": labels,
        "Tty": False,
        "OpenStdin": False,
        "HostConfig": _host_config(container, spec),
    }
    if isinstance(container.command, str):
        body["Entrypoint"], body["Cmd"] = ["/bin/sh", "-c"], [container.command]
    else:
        if container.entrypoint:
            body["Entrypoint"] = list(container.entrypoint)
        if container.command is not None:
            body["Cmd"] = list(container.command)
    for name, value in (("WorkingDir", container.directory), ("User", container.user)):
        if value:
            body[name] = value
    return body


def _host_config(container: ContainerSpec, spec: TaskSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        # The scheduler repeats what fails, and nobody else.
        "RestartPolicy": {"Name": "no"},
        # Removed by the worker, once it has read how it ended.
        "AutoRemove": False,
        # The kernel gives a first process no signal that it has no handler for.
        "Init": container.init,
    }
    if container.mounts:
        config["Mounts"] = [_mount(mount) for mount in container.mounts]
    if container.network:
        config["NetworkMode"] = container.network
    if spec.memory_limit_bytes is not None:
        # Both the same: no swap, which would make it a limit on speed.
        config["Memory"] = config["MemorySwap"] = spec.memory_limit_bytes
    if spec.cpu_limit is not None:
        config["NanoCpus"] = round(spec.cpu_limit * 1e9)
    return config


def _mount(mount: Mount) -> dict[str, Any]:
    kind = "bind" if mount.source.startswith("/") else "volume"
    return {"Type": kind, "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def payload_archive(payload: bytes) -> bytes:
    """A tar file, to be unpacked at ``/``: a folder that any user may write to, with the payload in it.

    Not a mount: the worker may run in a container itself, and its folders have other names for the engine.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folder = tarfile.TarInfo(OWN_FOLDER.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder)
        file = tarfile.TarInfo(_PAYLOAD_PATH.lstrip("/"))
        file.size, file.mode = len(payload), 0o444
        archive.addfile(file, io.BytesIO(payload))
    return packed.getvalue()

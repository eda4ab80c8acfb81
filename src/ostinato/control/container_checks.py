"""What the container of a task must look like so that an engine can run it as written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from ostinato.control.checks import VARIABLE_NAME, Check, invalid, pair_checks, refuse_nul, validate_command
from ostinato.core.definition import ContainerSpec, Mount

IMAGE_LENGTH_MAX = 500
#: Where every container finds its payload and may write; nothing else may be put there.
OWN_FOLDER = "/ostinato"

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
#: ``[host[:port]/]path[:tag][@digest]``
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-fA-F]{32,128})?",
    re.ASCII,
)
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,254}", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_.-]{1,64}(?::[A-Za-z0-9_.-]{1,64})?", re.ASCII)
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)


def container_checks(executor: ContainerSpec) -> Iterator[Check]:
    """The checks of a container; each raises ``INVALID_VALUE`` with the field as ``tasks.yaml`` names it."""
    yield partial(_validate_image, executor.image)
    if executor.command is not None:
        hint = "leave it out to run what the image runs"
        yield partial(validate_command, executor.command, field="container.command", hint=hint)
    yield partial(_validate_entrypoint, executor)
    yield from pair_checks(executor.env, "container.env", names=VARIABLE_NAME)
    yield from _mount_checks(executor.mounts)
    yield partial(_validate_directory, executor.directory)
    for field, text, pattern, example in (
        ("container.user", executor.user, _USER, "1000:1000"),
        ("container.network", executor.network, _NETWORK, "none, host, or the name of a network"),
    ):
        yield partial(_validate_word, text, field, pattern=pattern, hint=f"as {example}")


def _validate_image(image: str) -> None:
    field, hint = "container.image", "as postgres:17 or registry.example.com/shop/report:1.4"
    if not image:
        raise invalid("an image is needed", field, hint=hint)
    refuse_nul(image, field)
    if len(image) > IMAGE_LENGTH_MAX or _IMAGE.fullmatch(image) is None:
        raise invalid(f"{image[:100]!r} is not the name of an image", field, hint=hint)


def _validate_entrypoint(executor: ContainerSpec) -> None:
    field = "container.entrypoint"
    if not executor.entrypoint:
        return
    validate_command(executor.entrypoint, field=field)
    if isinstance(executor.command, str):
        raise invalid(
            "stands in the way of a command that is a text, which /bin/sh -c runs",
            field,
            hint="leave it out, or write the command as a list of words",
        )


def _mount_checks(mounts: Sequence[Mount]) -> Iterator[Check]:
    targets: set[str] = set()
    for index, mount in enumerate(mounts):
        field = f"container.mounts[{index}]"
        yield partial(_validate_source, mount.source, f"{field}.source")
        yield partial(_validate_target, mount.target, f"{field}.target", targets=targets)


def _validate_source(source: str, field: str) -> None:
    refuse_nul(source, field)
    if not source.startswith("/") and _VOLUME.fullmatch(source) is None:
        raise invalid(
            f"{source[:100]!r} is neither an absolute path nor the name of a volume",
            field,
            hint="as /srv/shop, a folder of the worker's machine, or as cache, a volume",
        )


def _validate_target(target: str, field: str, *, targets: set[str]) -> None:
    _validate_directory(target, field=field)
    plain = target.rstrip("/")
    if not plain:
        raise invalid("cannot be the whole container", field, hint="name a folder, as /data")
    if plain == OWN_FOLDER or plain.startswith(f"{OWN_FOLDER}/"):
        raise invalid(f"{OWN_FOLDER} is where the payload of every attempt is", field)
    if plain in targets:
        raise invalid(f"{plain} is taken by an earlier mount", field)
    targets.add(plain)


def _validate_directory(directory: str, *, field: str = "container.directory") -> None:
    refuse_nul(directory, field)
    if (directory or field != "container.directory") and not directory.startswith("/"):
        raise invalid(f"{directory[:100]!r} is not an absolute path", field, hint="as /app")


def _validate_word(text: str, field: str, *, pattern: re.Pattern[str], hint: str) -> None:
    refuse_nul(text, field)
    if text and pattern.fullmatch(text) is None:
        raise invalid(f"{text[:100]!r} cannot be one", field, hint=hint)

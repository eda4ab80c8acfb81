"""``container``: a task that runs a container of an image."""

from __future__ import annotations

from functools import partial
from typing import get_args

from ostinato.control.document.block import Block, Field
from ostinato.control.document.command_kind import WORDS_COUNT_MAX, CommandKind
from ostinato.control.document.hints import block_hint, hint_of_container_field
from ostinato.control.document.kinds import ListOf, Text, TextMap, Truth, Word
from ostinato.core.definition import ContainerSpec, Mount, PullPolicy

MOUNTS_COUNT_MAX = 100

MOUNT = Block(
    type=Mount,
    thing="a mount",
    fields=(
        Field(
            name="source",
            attribute="source",
            kind=Text(),
            description="Absolute path on the worker's machine, or the name of a volume of its engine.",
            required=True,
            examples=("/srv/shop", "cache"),
        ),
        Field(
            name="target",
            attribute="target",
            kind=Text("^/"),
            description="Absolute path within the container.",
            required=True,
            examples=("/data",),
        ),
        Field(
            name="read_only",
            attribute="read_only",
            kind=Truth(),
            description="Whether the container may only read it.",
            default=False,
        ),
    ),
)

CONTAINER = Block(
    type=ContainerSpec,
    thing="a container",
    bare_hint=partial(block_hint, "container"),
    unknown_hint=hint_of_container_field,
    fields=(
        Field(
            name="image",
            attribute="image",
            kind=Text(),
            description="Image, with its registry where that is not the engine's default, and tag or digest.",
            required=True,
            examples=("postgres:17", "registry.example.com/shop/report:1.4"),
        ),
        Field(
            name="command",
            attribute="command",
            kind=CommandKind(),
            description="A text is run by the image's /bin/sh -c, a list of words is what its program gets; "
            "unsaid: what the image runs by itself.",
            examples=("pg_dump shop", ["report", "--day", "today"]),
        ),
        Field(
            name="entrypoint",
            attribute="entrypoint",
            kind=ListOf(Text(), WORDS_COUNT_MAX, '["program"]'),
            description="Program in place of the image's; its arguments are the words of the command.",
            examples=(["python", "-m"],),
        ),
        Field(
            name="env",
            attribute="env",
            kind=TextMap("a variable"),
            description="Variables, added to the image's own.",
            examples=({"PGHOST": "db.example.com"},),
        ),
        Field(
            name="mounts",
            attribute="mounts",
            kind=ListOf(MOUNT, MOUNTS_COUNT_MAX, "[{source: /srv/shop, target: /data}]"),
            description="Folders, files and volumes of the worker's machine that the container sees.",
            examples=([{"source": "/srv/shop", "target": "/data", "read_only": True}],),
        ),
        Field(
            name="directory",
            attribute="directory",
            kind=Text(),
            description="Folder within the container that it runs in; unsaid: the image's.",
            examples=("/app",),
        ),
        Field(
            name="user",
            attribute="user",
            kind=Text(),
            description="User, and group after a colon, that it runs as; unsaid: the image's.",
            examples=("1000:1000",),
        ),
        Field(
            name="network",
            attribute="network",
            kind=Text(),
            description="Network of the engine, or none, or host; unsaid: the engine's default.",
            examples=("none", "backend"),
        ),
        Field(
            name="pull",
            attribute="pull",
            kind=Word(get_args(PullPolicy)),
            description="When the image is fetched: if it is missing, always before an attempt, or never.",
            default="missing",
        ),
        Field(
            name="init",
            attribute="init",
            kind=Truth(),
            description="Whether a small init stands before the program; without one most ignore SIGTERM.",
            default=True,
        ),
    ),
)

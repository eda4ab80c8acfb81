"""Options of the commands that run processes; each is a setting (docs/operations.md)."""

from __future__ import annotations

from typing import Annotated

import typer

AppsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="APP…",
        help="module:attribute, path/file.py, path/file.py:attribute, a tasks.yaml or a folder of them.",
    ),
]
NoReloadOption = Annotated[
    bool, typer.Option("--no-reload", help="Go on with the code and documents as they are at the start.")
]
ReloadDirOption = Annotated[
    list[str] | None,
    typer.Option("--reload-dir", metavar="DIR", help="Watch the code in DIR too; may be repeated."),
]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="As the arguments of dev, but no documents.")
]
BindOption = Annotated[
    str | None, typer.Option("--bind", metavar="HOST:PORT", help="Address of API, health and metrics.")
]
WorkerBindOption = Annotated[
    str | None, typer.Option("--worker-bind", metavar="HOST:PORT", help="Address that workers connect to.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST:PORT", help="Address at which workers reach this node, if another."
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="HOST:PORT", help="Address of the scheduler to connect to."),
]
JoinTokenOption = Annotated[
    str | None,
    typer.Option(
        "--join-token-file", metavar="FILE", help="Token that workers show and a scheduler asks for."
    ),
]
CertificateOption = Annotated[
    str | None,
    typer.Option("--tls-certificate", metavar="FILE", help="Certificate to show to workers, in PEM form."),
]
KeyOption = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate, in PEM form.")
]
AuthorityOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Speak TLS, to a scheduler with this certificate or one that it has signed.",
    ),
]
ServerNameOption = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", help="Name in the scheduler's certificate, if not its host."
    ),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where the worker keeps its files.")
]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", metavar="N", help="Tasks that run at once in processes of their own.")
]
AsyncSlotsOption = Annotated[
    int | None, typer.Option("--async-slots", metavar="N", help="Async tasks that run at once.")
]
NameOption = Annotated[str | None, typer.Option("--worker-name", help="Stable name of the worker.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label; may be repeated.")
]
EngineSocketOption = Annotated[
    str | None,
    typer.Option(
        "--engine-socket",
        metavar="PATH",
        help="UNIX socket of Docker or Podman, for container tasks; none: run none.",
    ),
]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        "--worker-lease",
        metavar="DURATION",
        help="How long a worker goes on without hearing from the scheduler.",
    ),
]
DrainOption = Annotated[
    str | None,
    typer.Option(
        "--drain-timeout", metavar="DURATION", help="How long a clean stop waits for running tasks."
    ),
]
RetentionSuccessOption = Annotated[
    str | None,
    typer.Option("--retention-success", metavar="DURATION", help="How long a success is kept."),
]
RetentionOtherOption = Annotated[
    str | None,
    typer.Option("--retention-other", metavar="DURATION", help="How long any other end is kept."),
]
RoutingOption = Annotated[
    str | None, typer.Option("--routing", help="Which free worker is taken: least_loaded or round_robin.")
]
PressureYellowOption = Annotated[
    int | None,
    typer.Option(
        "--pressure-yellow", metavar="N", help="Slow submissions down while so many instances wait."
    ),
]
PressureRedOption = Annotated[
    int | None,
    typer.Option("--pressure-red", metavar="N", help="Refuse submissions while so many instances wait."),
]
LogLevelOption = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormatOption = Annotated[str | None, typer.Option("--log-format", help="auto, json or text.")]

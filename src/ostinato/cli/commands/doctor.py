"""``ostinato doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

import typer

from ostinato.cli.commands.run_options import (
    AppOption,
    AuthorityOption,
    BindOption,
    CertificateOption,
    DataDirOption,
    JoinTokenOption,
    KeyOption,
    WorkerBindOption,
)
from ostinato.cli.options import DatabaseOption, JsonOption, settings_of, wants_json


def doctor(
    context: typer.Context,
    *,
    app: AppOption = None,
    bind: BindOption = None,
    worker_bind: WorkerBindOption = None,
    data_dir: DataDirOption = None,
    join_token_file: JoinTokenOption = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    tls_ca: AuthorityOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, the settings, the database and what runs; nothing is changed."""
    from ostinato.cli.output import print_json, safe, say
    from ostinato.doctor.all_checks import all_checks, machine_checks
    from ostinato.doctor.report import Finding, run_checks, shown_error
    from ostinato.errors import EXIT_FAILED, UserError

    try:
        settings = settings_of(
            context,
            app=app,
            bind=bind,
            worker_bind=worker_bind,
            data_dir=data_dir,
            join_token_file=join_token_file,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_ca=tls_ca,
            database=database,
        )
    except UserError as error:
        # The other checks need settings; what is left may still be the cause.
        findings = run_checks(machine_checks())
        findings.append(Finding("fail", "settings", shown_error(error), error.hint))
    else:
        findings = run_checks(all_checks(settings))
    is_well = all(finding.status != "fail" for finding in findings)
    if wants_json(context, as_json=as_json):
        rows = [
            {"status": row.status, "check": row.check, "what": row.what, "hint": row.hint or None}
            for row in findings
        ]
        print_json({"ok": is_well, "findings": rows})
    else:
        for row in findings:
            hint = f"  —  {safe(row.hint)}" if row.hint else ""
            say(f"{row.status:<4}  {row.check}: {safe(row.what)}{hint}")
    if not is_well:
        raise typer.Exit(EXIT_FAILED)

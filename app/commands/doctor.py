"""`pagewell doctor`: what machine this is, how a model does on it, what is slow and why."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from app.commands.params import setting_options, settings_from
from app.printable import printable


@click.command(short_help="Say how this machine will do, and why.")
@click.argument("model_name", metavar="[MODEL]", required=False)
@setting_options()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts and bug reports.")
def doctor(config: Path | None, model_name: str | None, as_json: bool, **given: Any) -> None:
    """Examine this machine, and try MODEL on it if it is on disk: what fits, which kernels run, what is slow and why."""
    from app import doctor as examination
    from app.catalog import library

    settings = settings_from(config, given, model_name)
    report = examination.examine(settings)
    try:
        model = library.find(settings.serving.model)
    except library.ModelNotDownloaded:
        report.sections["model"] = {
            "name": f"{settings.serving.model} is not on disk: pagewell models pull {settings.serving.model}"
        }
    else:
        asyncio.run(examination.try_model(report, settings, model))
    click.echo(json.dumps(asdict(report), indent=2) if as_json else printable("\n".join(examination.lines(report))))

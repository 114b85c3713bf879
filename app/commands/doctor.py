"""`pagewell doctor`: what machine this is, how a model does on it, what is slow and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.commands.params import setting_options, settings_from
from app.printable import printable

if TYPE_CHECKING:
    from engine.profile import Case


@click.command(short_help="Say how this machine will do, and why.")
@click.argument("model_name", metavar="[MODEL]", required=False)
@setting_options()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts and bug reports.")
@click.option("--profile", "as_profile", is_flag=True, help="Show where the time of a step on MODEL goes instead.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Steps to profile.")
def doctor(config: Path | None, model_name: str | None, as_json: bool, as_profile: bool, steps: int, **given: Any) -> None:
    """Examine this machine, and try MODEL on it if it is on disk: what fits, which kernels run, what is slow and why."""
    from app import doctor as examination
    from app.catalog import disk, library
    from engine.profile import profile

    settings = settings_from(config, given, model_name)
    if as_profile:
        model = library.find(settings.serving.model, settings.orchestrator.models_folders)
        cases = asyncio.run(profile(model.path, settings.engine_for(*disk.names_of(model)), steps))
        facts = [{**asdict(case), "host_s": case.host_s} for case in cases]
        click.echo(json.dumps(facts, indent=2) if as_json else printable("\n".join(_lines(cases))))
        return
    report = examination.examine(settings)
    try:
        model = library.find(settings.serving.model, settings.orchestrator.models_folders)
    except library.ModelNotDownloaded:
        report.sections["model"] = {
            "name": f"{settings.serving.model} is not on disk: pagewell models pull {settings.serving.model}"
        }
    else:
        asyncio.run(examination.try_model(report, settings, model))
    click.echo(json.dumps(asdict(report), indent=2) if as_json else printable("\n".join(examination.lines(report))))


def _lines(cases: list[Case]) -> Iterator[str]:
    """A profile for a person: for each case the step, its parts and its operators, the longest first."""
    for case in cases:
        yield (
            f"{case.name}: {case.step_s * 1e3:.2f} ms per step, {case.n_tokens / case.step_s:,.0f} tok/s; "
            f"{case.host_s * 1e3:.2f} ms of it outside the model; medians of {case.n_steps} steps"
        )
        for title, times in (("step", case.parts), ("operators", case.operators)):
            if times:
                yield f"  {title}"
            for name, seconds in sorted(times.items(), key=lambda item: -item[1]):
                yield f"    {name:28} {seconds * 1e3:9.3f} ms {seconds / case.step_s:7.1%}"

"""`pagewell settings`: every setting with its default; the README's table comes from here."""

from __future__ import annotations

from pathlib import Path

import click

from app.commands.params import config_option
from app.printable import printable
from app.settings import BY_NAME, OPTIONS, Settings, load


@click.command(short_help="Show every setting, its value and meaning.")
@config_option
@click.option("--markdown", is_flag=True, help="All settings and their defaults as a Markdown table.")
def settings(config: Path | None, markdown: bool) -> None:
    """Show the settings in force, where each can be set, and what it means."""
    if markdown:
        click.echo(markdown_table())
        return
    now = load(config=config)
    click.secho(f"Settings file: {now.config_path or 'none'}\n", dim=True)
    section = None
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            click.secho(f"[{section}]", bold=True)
        value = "(set)" if option.name == "api_key" and now.serving.api_key else option.show(value_of(now, option.name))
        click.echo(f"{option.name} = {value or '-'}")
        click.secho(f"    {option.description} {option.flag}, {option.env}", dim=True)
    for name in now.models:
        click.secho(f'[models."{name}"]', bold=True)
        for setting, value in now.of_model(name).items():
            click.echo(printable(f"{setting} = {BY_NAME[setting].show(value) or '-'}"))


def value_of(settings: Settings, name: str) -> object:
    """The value of a setting by its name."""
    holder = next(part for part in (settings.serving, settings.engine, settings.orchestrator) if name in part.__struct_fields__)
    return getattr(holder, name)


def markdown_table() -> str:
    """Every setting: option, section of the TOML file, default, meaning."""
    rows = ["| option | section | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        flag = f"`{option.flag}`" + (f", `{option.negative_flag}`" if option.kind == "bool" else "")
        default = f"`{shown}`" if (shown := option.show(option.default)) else ""
        text = option.description.replace("|", "\\|")
        if option.choices:
            text += f" One of {', '.join(f'`{choice}`' for choice in option.choices)}."
        rows.append(f"| {flag} | {option.section} | {default} | {text} |")
    return "\n".join(rows)

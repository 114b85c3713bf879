"""`pagewell doctor`."""

import click


@click.command(short_help="Say how this machine will do, and why.")
def doctor() -> None:
    """x"""

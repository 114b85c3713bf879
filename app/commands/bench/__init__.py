"""`pagewell bench`: measurements."""

from __future__ import annotations

import click

from app.commands.bench.blocks import blocks
from app.commands.bench.cache import cache
from app.commands.bench.compare import compare
from app.commands.bench.formats import formats
from app.commands.bench.limits import limits
from app.commands.bench.operators import ops
from app.commands.bench.perplexity import perplexity
from app.commands.bench.restart import restart
from app.commands.bench.serve import serve


@click.group(commands=[serve, compare, limits, ops, perplexity, cache, restart, blocks, formats])
def bench() -> None:
    """Measure speed: of a server, against other servers, of this machine, of the operators."""
